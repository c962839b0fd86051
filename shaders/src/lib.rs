//! Portable GPU backend: reserved, see ARCHITECTURE.md.
