//! Model graphs: token ids in, logits out.

mod activations;
mod forward;
mod runner;
pub mod weights;

pub(crate) use activations::RopeAngles;
pub use runner::{Runner, RunnerOptions};
pub use weights::{LayerWeights, Weights};
