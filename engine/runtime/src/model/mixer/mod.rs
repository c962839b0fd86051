//! Token mixers: the part of a layer that combines tokens. One file per kind.

pub mod attention;
pub mod latent;
pub mod recurrent;

use nestling_formats::{Level, MatrixKind};

use super::activations::Activations;
use super::memory::LayerMemory;
use nestling_core::backend::{Backend, Encoder, HeadMatrices, Linear, Write};
use nestling_core::batch::StepRows;
use nestling_core::error::EngineError;

pub use attention::{AttentionWeights, GateWeights};
pub use latent::LatentWeights;
pub use recurrent::{RecurrentCore, RecurrentWeights};

/// Weights of the mixer of one layer.
pub enum MixerWeights<B: Backend> {
    /// Attention over keys and values.
    Attention(AttentionWeights<B>),
    /// Attention over latents.
    Latent(LatentWeights<B>),
    /// Recurrence with a state of fixed size.
    Recurrent(RecurrentWeights<B>),
}

impl<B: Backend> MixerWeights<B> {
    /// Returns the bytes that its products read at a level.
    pub fn read_bytes(&self, level: Level) -> u64 {
        let bytes = |matrix: &B::Matrix| B::matrix_bytes(matrix, level);
        match self {
            Self::Attention(weights) => {
                let gate = weights.gate.iter().map(|gate| &gate.projection);
                let linears = weights.qkv.iter().chain(gate).chain([&weights.output]);
                linears.map(|linear| bytes(&linear.matrix)).sum()
            }
            Self::Latent(weights) => weights.matrices().map(bytes).sum(),
            Self::Recurrent(weights) => {
                let linears = weights.inputs.iter().chain([&weights.output]);
                linears.map(|linear| bytes(&linear.matrix)).sum()
            }
        }
    }
}

/// Arguments of a mixer.
pub struct MixerArgs<'a, B: Backend> {
    /// Rows of the step. KV entries or states are stored for each of them.
    pub rows: &'a mut StepRows,
    /// Indices of the rows with requested logits. Set in the last layer if some rows have none.
    pub tail: Option<&'a [u32]>,
    /// Buffers: the input is `normed`, and the output is added to `x`.
    pub act: &'a mut Activations<B>,
    /// Pages or states of the layer.
    pub memory: &'a mut LayerMemory<B>,
    /// Addition of the output to the residual stream.
    pub residual: ResidualAdd<'a, B>,
}

/// Addition of a mixer's output: x += multiplier · W · inputs + bias, or x += norm(W · inputs).
///
/// The bias was multiplied when it was loaded.
pub struct ResidualAdd<'a, B: Backend> {
    /// Multiplier of the output.
    pub multiplier: f32,
    /// Norm of the output with its epsilon, if it has one.
    pub norm: Option<(&'a B::Floats, f32)>,
}

impl<B: Backend> ResidualAdd<'_, B> {
    /// Adds the product with the output projection to `x`.
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

/// Observer of the inputs of matrix products, used for calibration.
pub trait ActivationObserver<B: Backend> {
    /// Receives the inputs `x` of the next product with this matrix and with others of the same inputs.
    fn inputs(
        &mut self,
        encoder: &mut B::Encoder<'_>,
        kind: MatrixKind,
        x: &B::Buffer,
    ) -> Result<(), EngineError> {
        let _ = (encoder, kind, x);
        Ok(())
    }

    /// Receives the inputs of per-head matrices. Each head uses the first elements of its part of `x`.
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

/// An observer that ignores everything.
pub struct NoopObserver;

impl<B: Backend> ActivationObserver<B> for NoopObserver {}

/// Adds the output of a layer's mixer to the residual stream.
pub fn mix<B: Backend>(
    enc: &mut B::Encoder<'_>,
    weights: &MixerWeights<B>,
    args: MixerArgs<'_, B>,
    observer: &mut impl ActivationObserver<B>,
) -> Result<(), EngineError> {
    match weights {
        MixerWeights::Attention(weights) => attention::mix(enc, weights, args, observer),
        MixerWeights::Latent(weights) => latent::mix(enc, weights, args, observer),
        MixerWeights::Recurrent(weights) => recurrent::mix(enc, weights, args, observer),
    }
}

/// Returns the error for weights and activations of different models.
fn no_buffers() -> EngineError {
    EngineError::mismatch("buffers of a mixer", "those of the layer", "none")
}
