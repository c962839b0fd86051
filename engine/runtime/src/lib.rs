//! Model graphs, the step loop that batches sessions, sessions and generations.
//!
//! An [`Engine`] owns threads and a memory budget. Models are opened in an engine, and each session of a model
//! is a token history with its KV cache. Generations of all sessions share the steps of one loop.
//! Applications use these types through the crate `nestling`, which also chooses the device.
//!
//! # Example
//!
//! ```
//! use nestling_core::CancelToken;
//! use nestling_runtime::{Engine, EngineOptions, GenerateOptions, Model, ModelOptions};
//!
//! # let store = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
//! let engine = Engine::new(EngineOptions::default())?;
//! let options = ModelOptions::default();
//! let model = Model::open(&engine, store, &options, &mut |_| {}, &CancelToken::new())?;
//! let options = GenerateOptions { max_tokens: Some(4), ..GenerateOptions::greedy() };
//! let text = model.session().generate("The captain said", &options)?.into_text()?;
//! assert!(!text.is_empty());
//! # Ok::<(), nestling_core::EngineError>(())
//! ```
//!
//! # Types
//!
//! | type | purpose |
//! |---|---|
//! | [`Engine`], [`EngineOptions`] | threads, memory budget and step loop |
//! | [`Model`], [`ModelOptions`] | weights, tokenizer and chat template |
//! | [`Session`], [`Chat`] | token history; conversation with a transcript |
//! | [`Generation`], [`GenerateOptions`] | running output: iterator, stream or future of [`Event`]s |
//! | [`Input`], [`Conversation`], [`Prompt`] | inputs of a generation |
//! | [`Constraint`] | interface of constraints on the output |
//! | [`PageStore`] | computed prefixes on disk |
//! | [`MemoryPlan`], [`ServiceStatus`] | planned memory; recent activity |

pub mod capabilities;
pub mod chat;
pub mod constraint;
mod encode_worker;
pub mod engine;
pub mod event;
mod event_buffer;
pub mod generate;
mod identity;
pub mod input;
mod levels;
pub mod load;
mod mask_worker;
pub mod memory_plan;
mod message_builder;
pub mod model;
mod model_core;
pub mod open;
pub mod options;
mod options_wire;
mod page_store;
mod prefix;
pub mod sample_tokens;
mod sequence;
pub mod session;
mod slot;
pub mod snapshot;
mod starting;
pub mod status;
mod step_loop;
mod stored_pages;

pub use capabilities::Capabilities;
pub use chat::Chat;
pub use constraint::{
    Constraint, ConstraintCache, ConstraintContext, ConstraintError, ConstraintSource, Starts,
    Writes,
};
pub use engine::Engine;
pub use event::{Event, FinishReason, GenerationSummary, HiddenRow, Stats, TokenEvent, Usage};
pub use generate::{AnswerFuture, EventStream, Generation};
pub use identity::ModelIdentity;
pub use input::{Conversation, Input, Prompt};
pub use load::{ModelSource, OpenProgress, OpenWithin};
pub use memory_plan::{MemoryPlan, PlannedResidence};
pub use model_core::ModelParts;
pub use nestling_text::{SamplerKind, SamplingOptions, SamplingParams, TokenMask};
pub use open::{FittedConversation, Model};
pub use options::{
    Driver, EngineOptions, GenerateOptions, HiddenRows, ModelOptions, Prefixes, Residence,
};
pub use page_store::{
    PageFile, PageFiles, PageName, PageReads, PageStore, PageStoreOptions, PageStoreStatus,
};
pub use prefix::PrefixStatus;
pub use session::Session;
pub use snapshot::SnapshotContents;
pub use status::{ExpertTotals, PageStatus, ServiceStatus, StepStatus};
