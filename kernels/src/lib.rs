//! CUDA backend: reserved, see ARCHITECTURE.md.
