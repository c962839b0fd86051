//! Model graphs, CPU backend, sessions and text.

pub mod backend;
pub mod batch;
pub mod budget;
pub mod cancel;
pub mod cpu;
pub mod driver;
pub mod error;
pub mod expert;
pub mod kv_cache;
pub mod model;
pub mod runner;
pub mod sampler;
#[cfg(feature = "text")]
pub mod text;
pub mod threads;
pub mod weights;

pub use backend::{Backend, Encoder};
pub use batch::{Batch, LevelPolicy, Row, SequenceRef};
pub use budget::{Budget, BudgetExceeded};
pub use cancel::CancelToken;
pub use error::EngineError;
pub use runner::{ModelRunner, StepOutput};
