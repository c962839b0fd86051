//! Importers of other formats: checkpoints of safetensors and GGUF files, the configuration of a
//! model, and the names that families give their tensors.
//!
//! Nothing here knows the `.nest` store: a converter reads weights here and writes them there. No
//! threads, devices or async live here: everything is a pure function or a plain reader that callers
//! thread.

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
