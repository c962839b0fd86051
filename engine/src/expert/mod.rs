//! Experts: where they come from and which are resident.

pub mod bias;
pub mod cache;
pub mod checkpoint;
mod embedding_rows;
mod extents;
pub mod float_tables;
pub mod host_rule;
mod host_tier;
mod jobs;
pub mod memory;
mod on_device;
mod on_host;
mod owned;
pub mod prefetch;
mod promote;
pub mod recorder;
mod request;
mod routed;
#[cfg(not(target_family = "wasm"))]
mod row_reader;
mod shape;
mod slot;
pub mod source;
pub mod stats;
pub mod store;
pub mod streamed;
mod tag;

pub use bias::ExpertBiases;
pub use cache::{ExpertCache, RequestScratch};
pub use checkpoint::CheckpointSource;
pub(crate) use embedding_rows::rows_that_stay;
pub use embedding_rows::{EmbeddedRows, EmbeddingRows};
pub use float_tables::FloatTables;
pub use host_rule::{HostExperts, HostLink, HostSpeeds};
pub use memory::ExpertMemory;
pub use on_host::HostOptions;
pub use prefetch::Prefetch;
pub use recorder::RoutingRecorder;
pub use source::{ExpertSource, Matrices, Scan};
pub use stats::StreamStats;
pub use store::StoreSource;
pub use streamed::StreamOptions;
