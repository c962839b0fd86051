//! Model graphs, CPU backend, sessions and text.

mod affinity;
pub mod allocation;
pub mod arena;
pub mod backend;
pub mod bandwidth;
pub mod batch;
pub mod budget;
pub mod calibrate;
pub mod cancel;
mod clock;
pub mod convert;
mod counts;
pub mod cpu;
pub mod device;
pub mod driver;
pub mod dual;
#[cfg(feature = "text")]
pub mod engine;
pub mod error;
#[cfg(feature = "text")]
pub mod event;
#[cfg(feature = "text")]
mod event_buffer;
pub mod expert;
pub mod expert_memory;
mod float_bytes;
#[cfg(feature = "text")]
pub mod generate;
#[cfg(feature = "text")]
pub mod input;
pub mod judge;
pub mod kv_cache;
pub mod level_policy;
#[cfg(feature = "text")]
pub mod load;
#[cfg(feature = "text")]
pub mod memory_plan;
pub mod model;
#[cfg(feature = "text")]
mod model_core;
#[cfg(feature = "text")]
pub mod open;
#[cfg(feature = "text")]
pub mod options;
pub mod reads;
pub mod record;
pub mod recurrent;
mod recycle;
pub mod residency;
pub mod routing_recorder;
pub mod routing_trace;
pub mod runner;
#[cfg(feature = "text")]
pub mod sample_tokens;
pub mod sampler;
#[cfg(feature = "text")]
mod sequence;
#[cfg(feature = "text")]
pub mod session;
#[cfg(feature = "text")]
mod slot;
#[cfg(feature = "text")]
pub mod snapshot;
#[cfg(feature = "text")]
mod step_loop;
pub mod stream_stats;
pub mod thread_count;
pub mod threads;
pub mod weights;

#[cfg(feature = "text")]
pub use affinity::ThreadPlacement;
pub use allocation::{Allocation, AllocationHash};
pub use backend::{Backend, BackendCounters, Encoder};
pub use batch::{Batch, Row, SequenceRef};
pub use budget::{Budget, BudgetExceeded};
pub use cancel::CancelToken;
pub use dual::DualOptions;
#[cfg(feature = "text")]
pub use engine::Engine;
pub use error::{EngineError, MemoryTooSmall};
#[cfg(feature = "text")]
pub use event::{Event, FinishReason, Finished, Stats, TokenEvent, Usage};
#[cfg(feature = "text")]
pub use generate::{AnswerFuture, EventStream, Generation};
#[cfg(feature = "text")]
pub use input::{Conversation, Input};
pub use kv_cache::KvDtype;
pub use level_policy::{DualPolicy, LevelMode, LevelPolicy, Threshold};
#[cfg(feature = "text")]
pub use load::{ModelSource, OpenProgress};
#[cfg(feature = "text")]
pub use memory_plan::{MemoryPlan, PlannedResidence};
#[cfg(feature = "text")]
pub use model_core::ModelParts;
#[cfg(feature = "text")]
pub use nestling_text as text;
#[cfg(feature = "text")]
pub use open::{Fitted, Model};
#[cfg(feature = "text")]
pub use options::{Driver, EngineOptions, GenerateOptions, ModelOptions, Residence};
pub use routing_recorder::RoutingRecorder;
pub use runner::{ModelRunner, StepOutput};
pub use sampler::SamplingParams;
#[cfg(feature = "text")]
pub use session::Session;
#[cfg(feature = "text")]
pub use snapshot::SnapshotContents;
pub use stream_stats::StreamStats;
pub use weights::ActivationMode;
