//! Model graphs: token ids in, logits out.

mod activations;
mod attention_biases;
mod embedding;
pub mod feed_forward;
mod floats;
mod forward;
mod latent_weights;
pub mod memory;
pub mod mixer;
mod needs;
mod rope;
mod runner;
pub mod weights;

pub use activations::Activations;
pub use embedding::Embedding;
pub use mixer::{AttentionWeights, MixerWeights};
pub use rope::{RopeAngles, rope_kinds};
pub use runner::{Runner, RunnerOptions};
pub use weights::{LayerWeights, SharedWeights, Weights};
