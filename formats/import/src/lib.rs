//! Importers for other formats: safetensors and GGUF checkpoints, model configurations, and the tensor names
//! of model families.
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
    DeltaNetConfig, ExpertBias, ExpertFormat, ExpertGroups, ExpertVector, FeedForward,
    GenerationDefaults, GroupScore, LatentConfig, LayerConfig, Llama3Scaling, LongRopeScaling,
    ModelConfig, Multipliers, OutputGate, QkNorm, RopeConfig, RopePairs, RopeScaling, RouterConfig,
    RouterInput, RouterScore, SharedExpert, SharedGate, Sinks, TokenMixer, ValueNorm, ValueSource,
    YarnScaling,
};
pub use element::ElementType;
pub use file_state::file_state;
pub use import_error::ImportError;
pub use read_at::write_header;
pub use shape::{FloatShape, MatrixShape, ModelShape};
