//! Model graphs: token ids in, logits out.

mod activations;
mod attention_biases;
mod divided;
mod embedding;
mod feed_forward_weights;
mod floats;
mod latent_weights;
pub mod layer;
mod mamba2_weights;
pub mod memory;
pub mod mixer;
mod needs;
mod norms;
mod replicas;
mod resume;
mod runner;
mod short_conv_weights;
pub mod weights;

pub use activations::Activations;
pub use embedding::Embedding;
pub use mixer::{AttentionWeights, GateWeights, MixerWeights};
pub use nestling_math::rope::{RopeAngles, rope_kinds};
pub use norms::NormsAfter;
pub use runner::{Runner, RunnerOptions};
pub use weights::{LayerWeights, SharedWeights, Weights};
