//! The bit-nested weight code, the `.nest` store, and the weight names that both use.
//!
//! This crate does not depend on checkpoint formats, model configurations or families: a store names matrices
//! and tensors by their role in the graph. It has no threads, devices or async code; all of it is pure
//! functions and plain readers that callers may run on their own threads.

pub mod dtype;
mod invariant;
pub mod level;
pub mod limits;
pub mod matrix;
pub mod memory;
pub mod nested;
mod regular_file;
pub mod store;

pub use dtype::DType;
pub use invariant::{InternalError, Invariant};
pub use level::{Level, Plane};
pub use matrix::{ExpertId, FloatId, FloatKind, MatrixId, MatrixKind};
pub use regular_file::{open_own_file, open_regular};
