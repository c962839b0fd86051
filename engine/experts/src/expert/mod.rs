//! Experts: sources and residency.

pub mod bias;
pub mod cache;
pub mod checkpoint;
mod embedding_rows;
pub mod float_tables;
mod groups_ahead;
#[cfg(not(target_family = "wasm"))]
mod mapped_checks;
mod owned;
mod routed;
#[cfg(not(target_family = "wasm"))]
mod row_reader;
mod row_table;
mod shape;
pub mod source;
pub mod store;
mod stored;
pub mod streamed;
mod tiled;

pub use bias::expert_biases;
pub use cache::{ExpertCache, RequestScratch};
pub use checkpoint::CheckpointSource;
pub use embedding_rows::EmbeddingRows;
pub use embedding_rows::rows_that_stay;
pub use float_tables::FloatTables;
pub use groups_ahead::GroupsAhead;
pub use nestling_core::backend::{ExpertBiases, HostLink};
pub use nestling_core::expert_memory::ExpertMemory;
pub use nestling_core::routing_recorder::RoutingRecorder;
pub use nestling_core::stream_stats::StreamStats;
pub use routed::RoutedInputs;
pub use row_table::EmbeddedRows;
pub use source::ExpertSource;
pub use store::{Matrices, Scan, StoreSource};
pub use streamed::{HostExperts, HostOptions, HostSpeeds, Prefetch, StreamOptions};
