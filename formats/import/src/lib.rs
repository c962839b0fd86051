//! Importers for other formats: safetensors and GGUF checkpoints, model configurations, and the tensor names
//! of model families.
//!
//! [`Checkpoint`] opens a directory of the Hugging Face Hub or a GGUF file. Both have the same interface: each
//! weight is addressed by its role in the graph, not by the tensor name of a family.
//!
//! ```
//! use nestling_formats::{MatrixId, MatrixKind};
//! use nestling_import::Checkpoint;
//!
//! # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../engine/runtime/tests/data");
//! let checkpoint = Checkpoint::open(format!("{data}/tiny-qwen3-moe"))?;
//! assert_eq!(checkpoint.config().num_hidden_layers, 3);
//!
//! let query = MatrixId { kind: MatrixKind::Query, layer: Some(0), expert: None };
//! let query = checkpoint.matrix(query)?;
//! assert_eq!([query.rows(), query.cols()], [6 * 24, 72]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | content | items |
//! |---|---|
//! | weights | [`Checkpoint`], [`MatrixPlace`], [`FloatPlace`], [`TensorInfo`], [`ElementType`] |
//! | hyperparameters | [`ModelConfig`], [`LayerConfig`], [`RouterConfig`], [`AttentionConfig`] |
//! | list of a model's weights | [`ModelShape`] |
//! | sampling defaults | [`GenerationDefaults`] |
//! | single files | [`safetensors::SafetensorsHeader`], [`gguf::GgufHeader`] |
//! | tensor names of families | [`names`] |
//! | errors and limits | [`ImportError`], [`limits`] |
//!
//! This crate does not depend on the `.nest` format: a converter reads weights here and writes a store
//! elsewhere. The crate uses no threads, devices or async code; callers may call it from several threads.

pub mod checkpoint;
pub mod config;
mod element;
mod file_state;
pub mod gguf;
mod import_error;
mod json;
mod json_writer;
pub mod limits;
pub mod names;
#[cfg(target_os = "linux")]
mod past_cache;
mod read_at;
pub mod safetensors;
pub mod shape;
mod tiktoken;
mod weight_files;

pub use checkpoint::{Asset, Checkpoint, FloatPlace, MatrixPlace, TensorInfo};
pub use config::{
    Activation, AngleFactors, Architecture, AttentionBias, AttentionConfig, BlockNorms,
    ContextLimit, DeltaNetConfig, ExpertBias, ExpertFormat, ExpertGroups, ExpertVector,
    FeedForward, GateFunction, GenerationDefaults, GroupScore, LatentConfig, LayerConfig,
    Llama3Scaling, LongRopeScaling, Mamba2Config, ModelConfig, Multipliers, OutputGate, QkNorm,
    RopeConfig, RopePairs, RopeScaling, RouterConfig, RouterInput, RouterScore, SharedExpert,
    SharedGate, ShortConvConfig, Sinks, TokenMixer, ValueNorm, ValueSource, YarnScaling,
};
pub use element::ElementType;
pub use file_state::file_state;
pub use import_error::ImportError;
pub use read_at::{ByteSource, write_header};
pub use shape::{FloatShape, MatrixShape, ModelShape};
