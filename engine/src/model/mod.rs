//! Model graphs: token ids in, logits out.

mod activations;
mod attention_biases;
mod embedding;
pub(crate) mod feed_forward;
mod floats;
mod forward;
mod latent_weights;
pub(crate) mod memory;
pub(crate) mod mixer;
mod needs;
mod rope;
mod runner;
pub mod weights;

pub(crate) use activations::Activations;
pub use embedding::Embedding;
pub use mixer::{AttentionWeights, MixerWeights};
pub(crate) use rope::{RopeAngles, rope_kinds};
pub use runner::{Runner, RunnerOptions};
pub use weights::{LayerWeights, SharedWeights, Weights};
