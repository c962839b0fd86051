//! Model graphs, CPU backend, sessions and text.
