//! Types and interfaces shared by all parts of the engine; the crate itself computes nothing.
//!
//! Contents: the device interface ([`backend`]), rows of a step and their levels ([`batch`],
//! [`level_policy`]), KV pages and recurrent states, weights in memory, memory budgets, cancellation, errors,
//! and records of expert use.

pub mod arena;
pub mod backend;
pub mod background;
pub mod batch;
pub mod budget;
pub mod cancel;
pub mod clock;
pub mod counts;
pub mod driver;
pub mod error;
pub mod expert_memory;
pub mod float_bytes;
mod keyed_places;
pub mod kv_cache;
pub mod level_policy;
pub mod recurrent;
pub mod recycle;
pub mod routing_recorder;
pub mod routing_trace;
pub mod runner;
pub mod schedule;
pub mod stream_stats;
pub mod sync;
pub mod weights;
pub mod wire;

pub use backend::{Backend, BackendCounters, Encoder};
pub use batch::{Batch, Row, SequenceRef};
pub use budget::{Budget, BudgetExceeded};
pub use cancel::CancelToken;
pub use error::{EngineError, ErrorClass, MemoryTooSmall};
pub use kv_cache::KvDtype;
pub use level_policy::{DualPolicy, LevelMode, LevelPolicy, Threshold};
pub use routing_recorder::RoutingRecorder;
pub use runner::{ModelRunner, StepOutput};
pub use stream_stats::StreamStats;
pub use weights::ActivationMode;
