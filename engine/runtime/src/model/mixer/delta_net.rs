//! Gated DeltaNet: x += Wo · gate(norm(delta(conv(W · x)))).

use nestling_formats::MatrixKind;
use nestling_import::DeltaNetConfig;

use super::{ActivationObserver, MixerArgs, no_buffers};
use nestling_core::backend::{Backend, DeltaNet, Encoder, Linear, Write};
use nestling_core::error::EngineError;

/// Weights of one layer's gated DeltaNet.
pub struct DeltaNetWeights<B: Backend> {
    /// Input projections: queries, keys and values; gates; beta and alpha.
    pub inputs: [Linear<B>; 3],
    /// Parameters of the recurrence between the projections.
    pub net: DeltaNet<B>,
    /// Output projection, `[hidden_size, value_dim]`.
    pub output: Linear<B>,
    /// Index of the buffers in `Activations::delta_nets`.
    pub buffers: usize,
}

/// Buffers of the layers with one shape. T = rows of the step.
pub struct DeltaNetBuffers<B: Backend> {
    /// Outputs of the input projections.
    pub projected: B::Buffer, // [T, inputs]
    /// Outputs of the heads.
    pub gathered: B::Buffer, // [T, value_dim]
    /// The same for the rows with requested logits.
    pub tail: B::Buffer, // [rows with logits, value_dim]
}

impl<B: Backend> DeltaNetBuffers<B> {
    /// Allocates buffers for steps of up to `rows_max` rows.
    pub fn new(
        backend: &mut B,
        shape: &DeltaNetConfig,
        rows_max: usize,
    ) -> Result<Self, EngineError> {
        Ok(Self {
            projected: backend.buffer(rows_max, shape.inputs())?,
            gathered: backend.buffer(rows_max, shape.value_dim())?,
            tail: backend.buffer(rows_max, shape.value_dim())?,
        })
    }
}

pub(super) fn mix<B: Backend>(
    enc: &mut B::Encoder<'_>,
    w: &DeltaNetWeights<B>,
    args: MixerArgs<'_, B>,
    observer: &mut impl ActivationObserver<B>,
) -> Result<(), EngineError> {
    let MixerArgs { rows, tail, act, memory, residual } = args;
    let states = memory.states()?;
    observer.inputs(enc, MatrixKind::DeltaIn, &act.normed)?;
    let buffers = act.delta_nets.get_mut(w.buffers).ok_or_else(no_buffers)?;
    let projected = &mut buffers.projected;
    enc.matmul(&w.inputs, &rows.dense_levels, &act.normed, Write::Set, projected)?;
    enc.delta_net(&w.net, rows, &buffers.projected, states, &mut buffers.gathered)?;
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
    let buffers = act.delta_nets.get_mut(w.buffers).ok_or_else(no_buffers)?;
    observer.inputs(enc, MatrixKind::DeltaOut, &buffers.gathered)?;
    residual.add(
        enc,
        &w.output,
        &rows.dense_levels,
        &mut buffers.gathered,
        &mut act.branch,
        &mut act.x,
    )
}
