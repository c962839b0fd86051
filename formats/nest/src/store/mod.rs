//! The `.nest` store: one file, or numbered shards, containing a model at all its levels.
//!
//! A store is a header, an index and aligned *extents*; `FORMAT.md` specifies the layout. [`Store`] reads a
//! store and [`StoreWriter`] writes one according to a [`StorePlan`]. Both share [`Index`], which computes
//! all lengths and offsets from the shapes. All claims of a file are verified before use: a damaged or
//! malicious store gives a [`StoreError`] with the location and the problem.

mod bytes;
mod check;
mod codecs;
mod decode;
#[cfg(target_os = "linux")]
mod direct_write;
mod disk;
mod encode;
mod error;
pub mod format;
mod hash;
mod header;
mod index;
mod journal;
mod kinds;
#[cfg(not(target_family = "wasm"))]
mod map;
mod pack;
mod partial;
mod parts;
mod plan;
mod read;
mod resume;
mod rows;
mod shards;
mod storage;
mod verify;
mod wide_hash;
mod writer;

pub use disk::{Disk, DiskFile, OsDisk};
pub use error::{Malformed, StorageChanged, StoreError};
pub use hash::StoreId;
pub use index::{
    CodecSlot, Encoding, Extent, FloatTensor, Group, GroupId, Index, Matrix, Section,
    levels_with_offset,
};
#[cfg(not(target_family = "wasm"))]
pub use map::{MappedExtent, MappedStore};
pub use pack::{MatrixData, pack_extent};
pub use parts::{Digits, Part, PartItem};
pub use plan::{Measures, SectionPlan, StorePlan};
pub use read::{OpenOptions, Store};
pub use rows::{RowError, RowScratch, StoredRows};
pub use shards::shard_path;
pub use storage::{FilePart, FileStorage, MemoryStorage, RangeSource, Storage};
pub use verify::{VerifyProgress, VerifyReport};
pub use writer::StoreWriter;

/// Name of the asset that holds the model's `config.json`.
pub const ASSET_CONFIG: &str = "config.json";
