//! The `.nest` store, the bit-nested weight code, and importers of other formats.
//!
//! No threads, devices or async live here: everything is a pure function or a plain reader that
//! callers thread.

pub mod checkpoint;
pub mod config;
mod delta_net;
pub mod dtype;
mod element;
pub mod gguf;
mod import_error;
mod json;
pub mod level;
pub mod limits;
pub mod matrix;
pub mod names;
pub mod nested;
mod read_at;
pub mod safetensors;
pub mod shape;
pub mod store;
mod weight_files;

pub use checkpoint::{Asset, Checkpoint, FloatPlace, MatrixPlace, TensorInfo};
pub use config::{
    Activation, Architecture, AttentionBias, AttentionConfig, BlockNorms, ExpertBias, ExpertFormat,
    ExpertGroups, ExpertVector, FeedForward, GenerationDefaults, GroupScore, LatentConfig,
    LayerConfig, ModelConfig, Multipliers, OutputGate, QkNorm, RopeConfig, RopePairs, RopeScaling,
    RouterConfig, RouterInput, RouterScore, SharedExpert, SharedGate, Sinks, TokenMixer, ValueNorm,
    ValueSource, YarnScaling,
};
pub use delta_net::DeltaNetConfig;
pub use dtype::DType;
pub use element::ElementType;
pub use import_error::ImportError;
pub use level::{Level, Plane};
pub use matrix::{ExpertId, FloatId, FloatKind, MatrixId, MatrixKind};
pub use read_at::write_front;
pub use shape::{FloatShape, MatrixShape, ModelShape};
