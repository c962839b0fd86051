//! Recurrent mixers, whose state has a fixed size: x += Wo · core(W · x).

use nestling_formats::MatrixKind;
use nestling_import::TokenMixer;

use super::{ActivationObserver, MixerArgs, no_buffers};
use nestling_core::backend::{Backend, DeltaNet, Encoder, Linear, Mamba2, ShortConv, Write};
use nestling_core::error::EngineError;

/// Weights of one layer's recurrent mixer.
pub struct RecurrentWeights<B: Backend> {
    /// Input projections, whose outputs are concatenated.
    pub inputs: Vec<Linear<B>>,
    /// Operation between the projections.
    pub core: RecurrentCore<B>,
    /// Output projection, `[hidden_size, outputs]`.
    pub output: Linear<B>,
    /// Index of the buffers in `Activations::recurrent`.
    pub buffers: usize,
}

/// Operation that updates the states, with its parameters.
pub enum RecurrentCore<B: Backend> {
    /// Gated DeltaNet: gate(norm(delta(conv(p)))). Inputs are queries, keys and values; gates; beta and alpha.
    DeltaNet(DeltaNet<B>),
    /// Gated short convolution: c ⊙ conv(b ⊙ u). The input is b, c and u.
    ShortConv(ShortConv<B>),
    /// Mamba-2: norm(gate(scan(conv(p)))). The input is gates, inputs, B and C, and time steps.
    Mamba2(Mamba2<B>),
}

impl<B: Backend> RecurrentCore<B> {
    /// Returns the kinds of the first input projection and of the output projection.
    fn kinds(&self) -> [MatrixKind; 2] {
        match self {
            Self::DeltaNet(_) => [MatrixKind::DeltaIn, MatrixKind::DeltaOut],
            Self::ShortConv(_) => [MatrixKind::ShortConvIn, MatrixKind::ShortConvOut],
            Self::Mamba2(_) => [MatrixKind::Mamba2In, MatrixKind::Mamba2Out],
        }
    }
}

/// Widths of a recurrent mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentShape {
    /// Outputs of the input projections.
    pub inputs: usize,
    /// Inputs of the output projection.
    pub outputs: usize,
}

impl RecurrentShape {
    /// Returns the widths of a mixer, or `None` if it is not recurrent.
    pub fn of(mixer: &TokenMixer) -> Option<Self> {
        let (inputs, outputs) = match mixer {
            TokenMixer::DeltaNet(shape) => (shape.inputs(), shape.value_dim()),
            TokenMixer::ShortConv(shape) => (shape.inputs(), shape.channels),
            TokenMixer::Mamba2(shape) => (shape.inputs(), shape.inner()),
            TokenMixer::Attention(_) | TokenMixer::Latent(_) => return None,
        };
        Some(Self { inputs, outputs })
    }
}

/// Buffers of the layers with one shape. T = rows of the step.
pub struct RecurrentBuffers<B: Backend> {
    /// Outputs of the input projections.
    pub projected: B::Buffer, // [T, inputs]
    /// Inputs of the output projection.
    pub gathered: B::Buffer, // [T, outputs]
    /// The same for the rows with requested logits.
    pub tail: B::Buffer, // [rows with logits, outputs]
}

impl<B: Backend> RecurrentBuffers<B> {
    /// Allocates buffers for steps of up to `rows_max` rows.
    pub fn new(
        backend: &mut B,
        shape: RecurrentShape,
        rows_max: usize,
    ) -> Result<Self, EngineError> {
        Ok(Self {
            projected: backend.buffer(rows_max, shape.inputs)?,
            gathered: backend.buffer(rows_max, shape.outputs)?,
            tail: backend.buffer(rows_max, shape.outputs)?,
        })
    }
}

pub(super) fn mix<B: Backend>(
    enc: &mut B::Encoder<'_>,
    w: &RecurrentWeights<B>,
    args: MixerArgs<'_, B>,
    observer: &mut impl ActivationObserver<B>,
) -> Result<(), EngineError> {
    let MixerArgs { rows, tail, act, memory, residual } = args;
    let (states, [input_kind, output_kind]) = (memory.states()?, w.core.kinds());
    observer.inputs(enc, input_kind, &act.normed)?;
    let buffers = act.recurrent.get_mut(w.buffers).ok_or_else(no_buffers)?;
    let RecurrentBuffers { projected, gathered, .. } = &mut *buffers;
    enc.matmul(&w.inputs, &rows.dense_levels, &act.normed, Write::Set, projected)?;
    match &w.core {
        RecurrentCore::DeltaNet(net) => enc.delta_net(net, rows, projected, states, gathered)?,
        RecurrentCore::ShortConv(conv) => {
            enc.short_conv(conv, rows, projected, states, gathered)?
        }
        RecurrentCore::Mamba2(mamba2) => enc.mamba2(mamba2, rows, projected, states, gathered)?,
    }
    if let Some(tail) = tail {
        // States are updated with all rows. The output is computed only for the rows with requested logits.
        if tail.is_empty() {
            return Ok(());
        }
        enc.gather_rows(&buffers.gathered, tail, &mut buffers.tail)?;
        std::mem::swap(&mut buffers.gathered, &mut buffers.tail);
        rows.keep(tail);
        act.keep(enc, tail)?;
    }
    let buffers = act.recurrent.get_mut(w.buffers).ok_or_else(no_buffers)?;
    observer.inputs(enc, output_kind, &buffers.gathered)?;
    let (levels, inputs) = (&rows.dense_levels, &mut buffers.gathered);
    residual.add(enc, &w.output, levels, inputs, &mut act.branch, &mut act.x)
}
