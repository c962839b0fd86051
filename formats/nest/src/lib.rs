//! The bit-nested weight code, the `.nest` store, and the weight names that both use.
//!
//! A store holds one model at five levels of 2, 3, 4, 6 and 8 bits per weight. A level is a prefix of the same
//! codes, so a reader fetches as many planes as its memory allows:
//!
//! ```
//! use nestling_formats::store::{GroupId, Store};
//! use nestling_formats::{Level, Plane};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
//! let store = Store::open(path)?;
//! assert_eq!(store.level(), Level::L8);
//!
//! // Plane P2 alone is a complete expert with two bits per weight.
//! let expert = store.group(&GroupId::expert_of(0, 5)).ok_or("no such expert")?;
//! let extent = store.extent(expert, Plane::P2).ok_or("plane P2 is absent")?;
//! let bytes = store.read_extent_vec(extent)?; // verifies the checksum
//! assert_eq!(bytes.len() as u64, extent.length);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | task | items |
//! |---|---|
//! | read a store | [`store::Store`], [`store::Index`], [`store::Group`], [`store::Extent`] |
//! | write a store | [`store::StorePlan`], [`store::StoreWriter`], [`store::pack_extent`] |
//! | quantize a matrix | [`nested::CodecFitter`], [`nested::quantize_matrix`], [`nested::quantize_calibrated`] |
//! | decode a matrix | [`nested::NestedView`], [`nested::NestedCodec`] |
//! | name bits | [`Level`], a prefix of each code; [`Plane`], the bits that a level adds |
//! | name weights | [`MatrixId`], [`FloatId`], [`ExpertId`], [`DType`] |
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
