//! Nestling for Kotlin and Swift. UniFFI writes both from the exported items of this crate.
//!
//! Calls that may take long are `suspend` functions and `async` functions. They hold no thread: wakers of the
//! engine resume them. A handle that another call uses is an error, so no call waits for a lock.

mod chat;
mod engine;
mod error;
mod event;
mod exclusive;
mod generation;
mod model;
mod opening;
mod options;
mod session;
mod status;
mod summary;

pub use chat::{Chat, ChatOptions};
pub use engine::{Engine, EngineOptions};
pub use error::{ListenerError, NestlingError};
pub use event::{Event, TokenInfo, TopToken};
pub use generation::{Answer, Generation};
pub use model::Model;
pub use opening::{KvType, OpenListener, OpenOptions, Residence};
pub use options::{GenerateOptions, Hidden, LogitBias, Sampling};
pub use session::{Session, SnapshotContents};
pub use status::Status;
pub use summary::{EndReason, Stats, Summary, ToolCall, Usage};

uniffi::setup_scaffolding!("nestling");
