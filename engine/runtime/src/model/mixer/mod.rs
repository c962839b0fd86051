//! The part of a layer that lets tokens see others, a file for every kind.

pub mod attention;
pub mod delta_net;
pub mod latent;

use nestling_formats::{Level, MatrixKind};

use super::activations::Activations;
use super::memory::LayerMemory;
use nestling_core::backend::{Backend, Encoder, HeadMatrices, Linear, Write};
use nestling_core::batch::StepRows;
use nestling_core::error::EngineError;

pub use attention::AttentionWeights;
pub use delta_net::DeltaNetWeights;
pub use latent::LatentWeights;

/// Weights of the mixer of one layer.
pub enum MixerWeights<B: Backend> {
    /// Attention over keys and values.
    Attention(AttentionWeights<B>),
    /// Attention over latents.
    Latent(LatentWeights<B>),
    /// A state of fixed size.
    DeltaNet(DeltaNetWeights<B>),
}

impl<B: Backend> MixerWeights<B> {
    /// Bytes that its products read at a level.
    pub fn read_bytes(&self, level: Level) -> u64 {
        let bytes = |matrix: &B::Matrix| B::matrix_bytes(matrix, level);
        match self {
            Self::Attention(weights) => {
                let linears = weights.qkv.iter().chain(&weights.gate).chain([&weights.output]);
                linears.map(|linear| bytes(&linear.matrix)).sum()
            }
            Self::Latent(weights) => weights.matrices().map(bytes).sum(),
            Self::DeltaNet(weights) => {
                let linears = weights.inputs.iter().chain([&weights.output]);
                linears.map(|linear| bytes(&linear.matrix)).sum()
            }
        }
    }
}

/// What a mixer works on.
pub struct MixerArgs<'a, B: Backend> {
    /// Every row's state is stored.
    pub rows: &'a mut StepRows,
    /// In the last layer, the rows that want more than that, if these are not all.
    pub tail: Option<&'a [u32]>,
    /// `normed` is the input; the output is added to `x`.
    pub act: &'a mut Activations<B>,
    /// What the layer keeps.
    pub memory: &'a mut LayerMemory<B>,
    /// How the output becomes part of the residual stream.
    pub residual: ResidualAdd<'a, B>,
}

/// How the output of a mixer is added: x += multiplier · W · inputs + bias, or x += norm(W · inputs).
/// A bias has the multiplier in it since it was loaded.
pub struct ResidualAdd<'a, B: Backend> {
    /// The output is multiplied by this.
    pub multiplier: f32,
    /// The output's norm with its epsilon, if it has one.
    pub norm: Option<(&'a B::Floats, f32)>,
}

impl<B: Backend> ResidualAdd<'_, B> {
    /// Adds the product with the output projection.
    pub fn add(
        &self,
        enc: &mut B::Encoder<'_>,
        output: &Linear<B>,
        levels: &[Level],
        inputs: &mut B::Buffer,
        branch: &mut B::Buffer,
        x: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        let output = std::slice::from_ref(output);
        if self.multiplier != 1.0 {
            enc.scale(self.multiplier, inputs)?;
        }
        let Some((norm, eps)) = self.norm else {
            return enc.matmul(output, levels, inputs, Write::Add, x);
        };
        enc.matmul(output, levels, inputs, Write::Set, branch)?;
        enc.rms_norm(branch, norm, eps, Write::Add, x)
    }
}

/// Sees the inputs of products.
pub trait ActivationObserver<B: Backend> {
    /// The next product of this matrix, and of others with the same inputs, is with `x`.
    fn inputs(
        &mut self,
        encoder: &mut B::Encoder<'_>,
        kind: MatrixKind,
        x: &B::Buffer,
    ) -> Result<(), EngineError> {
        let _ = (encoder, kind, x);
        Ok(())
    }

    /// The same for matrices of heads, each with the first elements of its own.
    fn head_inputs(
        &mut self,
        encoder: &mut B::Encoder<'_>,
        kind: MatrixKind,
        x: &B::Buffer,
        weights: &HeadMatrices<B>,
    ) -> Result<(), EngineError> {
        let _ = (encoder, kind, x, weights);
        Ok(())
    }
}

/// Looks away.
pub struct NoopObserver;

impl<B: Backend> ActivationObserver<B> for NoopObserver {}

/// Adds what a layer's tokens see of each other to the residual stream.
pub fn mix<B: Backend>(
    enc: &mut B::Encoder<'_>,
    weights: &MixerWeights<B>,
    args: MixerArgs<'_, B>,
    observer: &mut impl ActivationObserver<B>,
) -> Result<(), EngineError> {
    match weights {
        MixerWeights::Attention(weights) => attention::mix(enc, weights, args, observer),
        MixerWeights::Latent(weights) => latent::mix(enc, weights, args, observer),
        MixerWeights::DeltaNet(weights) => delta_net::mix(enc, weights, args, observer),
    }
}

/// Weights and activations that do not belong together.
fn no_buffers() -> EngineError {
    EngineError::mismatch("buffers of a mixer", "those of the layer", "none")
}
