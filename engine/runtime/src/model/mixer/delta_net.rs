//! Gated DeltaNet: x += Wo · gate(norm(delta(conv(W · x)))).

use nestling_formats::MatrixKind;
use nestling_import::DeltaNetConfig;

use super::{ActivationObserver, MixerArgs, no_buffers};
use nestling_core::backend::{Backend, DeltaNet, Encoder, Linear, Write};
use nestling_core::error::EngineError;

/// Weights of one layer's gated DeltaNet.
pub struct DeltaNetWeights<B: Backend> {
    /// To queries, keys and values; to gates; to beta and alpha.
    pub inputs: [Linear<B>; 3],
    /// What is between the projections.
    pub net: DeltaNet<B>,
    /// `[hidden_size, value_dim]`.
    pub output: Linear<B>,
    /// Which buffers fit it.
    pub buffers: usize,
}

/// Buffers of layers of one shape. T = rows of the step.
pub struct DeltaNetBuffers<B: Backend> {
    /// What the step's inputs were projected to.
    pub projected: B::Buffer, // [T, inputs]
    /// What the heads gave.
    pub gathered: B::Buffer, // [T, value_dim]
    /// That of the rows that want logits.
    pub tail: B::Buffer, // [rows with logits, value_dim]
}

impl<B: Backend> DeltaNetBuffers<B> {
    /// Buffers for steps of up to `rows_max` rows.
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
        // States see all rows; what is added serves the rows with logits alone.
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
