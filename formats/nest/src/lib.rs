//! The bit-nested weight code and the `.nest` store, and the words for weights that both use.
//!
//! Nothing here knows checkpoints, configurations or families: the store holds matrices and tensors
//! by what they do, whatever file they came from. No threads, devices or async live here: everything
//! is a pure function or a plain reader that callers thread.

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
