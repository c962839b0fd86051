//! Access to models on the Hugging Face Hub and in foreign formats: listings, resumable downloads, caches,
//! and the identification of files.
//!
//! This crate does not print, end the process or read the environment. Paths, token and endpoint are given by
//! [`HubOptions`], and events are reported to an [`Observer`].

pub mod bytes;
mod cached;
mod choice;
mod client;
mod copy_files;
mod digest;
mod disk;
mod download;
mod error;
mod fetch_state;
mod fetcher;
mod first_reads;
#[cfg(fuzzing)]
pub mod fuzzing;
mod gguf;
mod headers;
mod identity;
mod inventory;
mod listing;
mod made_of;
mod names;
mod observer;
mod obtain;
mod options;
mod origin;
mod ranges;
mod refusals;
mod remote_store;
mod removal;
mod repository;
pub mod room;
mod sections;
mod shard_names;
mod sniff;
mod space;
mod sparse_file;
mod store_address;
mod store_cache;
mod store_place;
mod survey;
mod turn;
mod upgrade;
mod uses;
mod web_copy;
mod web_store;

pub use cached::downloaded;
pub use client::Limits;
pub use disk::Disk;
pub use error::{Explanation, HubError, Result, plain};
pub use first_reads::FirstReads;
pub use inventory::{CachedKind, CachedModel, Caches, Inventory, Leftover, LeftoverKind, Source};
pub use made_of::SourceState;
pub use observer::{NoObserver, Notice, Observer, Task, TaskProgress};
pub use obtain::obtain;
pub use options::{DEFAULT_ENDPOINT, HubOptions, WebAccess};
pub use removal::{Removal, remove, remove_leftover};
pub use repository::{Reference, Repository};
pub use sniff::{FileKind, SniffedFile, is_gguf};
pub use store_address::StoreAddress;
pub use store_cache::{ConvertedModel, StoreCache};
pub use survey::{Arrival, Survey, estimated, survey};
pub use upgrade::{SectionCounts, upgrade};
pub use uses::{KnownUse, ModelLease, Uses};
pub use web_store::WebStore;

#[cfg(test)]
mod tests;
