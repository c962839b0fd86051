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
mod on_device;
mod on_host;
mod owned;
pub mod prefetch;
mod promote;
mod request;
mod routed;
#[cfg(not(target_family = "wasm"))]
mod row_reader;
mod row_table;
mod shape;
mod slot;
pub mod source;
pub mod store;
mod stored;
pub mod streamed;
mod tag;

pub use crate::backend::{ExpertBiases, HostLink};
pub use crate::expert_memory::ExpertMemory;
pub use crate::routing_recorder::RoutingRecorder;
pub use crate::stream_stats::StreamStats;
pub use bias::expert_biases;
pub use cache::{ExpertCache, RequestScratch};
pub use checkpoint::CheckpointSource;
pub use embedding_rows::EmbeddingRows;
pub(crate) use embedding_rows::rows_that_stay;
pub use float_tables::FloatTables;
pub use host_rule::{HostExperts, HostSpeeds};
pub use on_host::HostOptions;
pub use prefetch::Prefetch;
pub use row_table::EmbeddedRows;
pub use source::{ExpertSource, Matrices, Scan};
pub use store::StoreSource;
pub use streamed::StreamOptions;
