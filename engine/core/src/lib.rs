//! Types and interfaces shared by all parts of the engine; the crate itself computes nothing.
//!
//! All parts of an engine draw on one memory budget and check one cancellation token, and every failure has a
//! class by the party that can resolve it:
//!
//! ```
//! use nestling_core::budget::Purpose;
//! use nestling_core::{Budget, CancelToken};
//!
//! let budget = Budget::new(Some(1 << 20));
//! let weights = budget.reserve(Purpose::Weights, 1 << 19)?;
//! assert!(budget.reserve(Purpose::KeyValue, 1 << 20).is_err());
//! drop(weights); // releases the bytes
//! assert_eq!(budget.used_bytes(), 0);
//!
//! let cancel = CancelToken::new();
//! assert!(!cancel.is_cancelled());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | subject | items |
//! |---|---|
//! | memory | [`Budget`], [`BudgetExceeded`], [`MemoryTooSmall`] |
//! | cancellation | [`CancelToken`] |
//! | errors | [`EngineError`], [`ErrorClass`] |
//! | devices | [`Backend`], [`Encoder`], [`BackendCounters`] |
//! | rows of a step | [`Batch`], [`Row`], [`SequenceRef`], [`ModelRunner`], [`StepOutput`] |
//! | levels of the rows | [`LevelPolicy`], [`DualPolicy`], [`Threshold`], [`LevelMode`] |
//! | KV cache and recurrent states | [`kv_cache`], [`KvDtype`], [`recurrent`] |
//! | weights in memory | [`weights`], [`ActivationMode`], [`arena`] |
//! | ranks of one model | [`group::Group`], [`group::RankShare`], [`placement::Placement`], [`replicas::Replicas`] |
//! | scheduling | [`schedule::Scheduler`], [`schedule::admit`] |
//! | records of expert use | [`RoutingRecorder`], [`routing_trace::RoutingTrace`], [`StreamStats`] |

pub mod arena;
pub mod backend;
pub mod background;
pub mod batch;
pub mod budget;
pub mod cancel;
pub mod clock;
pub mod counts;
pub mod divided_pages;
pub mod driver;
pub mod error;
mod error_class;
pub mod expert_map;
pub mod expert_memory;
pub mod float_bytes;
pub mod group;
mod keyed_places;
pub mod kv_cache;
pub mod kv_heads;
pub mod level_policy;
pub mod placement;
pub mod rank_bytes;
mod rank_error;
pub mod recurrent;
pub mod recycle;
pub mod replicas;
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
pub use expert_map::{ExpertMap, ExpertPlanes};
pub use kv_cache::KvDtype;
pub use level_policy::{DualPolicy, LevelMode, LevelPolicy, Threshold};
pub use routing_recorder::RoutingRecorder;
pub use runner::{ModelRunner, StepOutput};
pub use stream_stats::StreamStats;
pub use weights::ActivationMode;
