//! The `.nest` store, the bit-nested weight code, and importers of other formats.
//!
//! No threads, devices or async live here: everything is a pure function or a plain reader that
//! callers thread.

pub mod level;
pub mod matrix;
pub mod nested;

pub use level::{Level, Plane};
pub use matrix::{ExpertId, FloatId, FloatKind, MatrixId, MatrixKind};
