//! Gated short convolution: x += Wo · (c ⊙ conv(b ⊙ u)), with b, c and u from W · x.

use nestling_formats::MatrixKind;
use nestling_import::ShortConvConfig;

use super::{ActivationObserver, MixerArgs, no_buffers};
use nestling_core::backend::{Backend, Encoder, Linear, ShortConv, Write};
use nestling_core::error::EngineError;

/// Weights of one layer's gated short convolution.
pub struct ShortConvWeights<B: Backend> {
    /// Projection to input gates, output gates and inputs, a single matrix.
    pub input: [Linear<B>; 1],
    /// Convolution between the projections.
    pub conv: ShortConv<B>,
    /// Output projection, `[hidden_size, channels]`.
    pub output: Linear<B>,
    /// Index of the buffers in `Activations::short_convs`.
    pub buffers: usize,
}

/// Buffers of the layers with one shape. T = rows of the step.
pub struct ShortConvBuffers<B: Backend> {
    /// Outputs of the input projection.
    pub projected: B::Buffer, // [T, 3 * channels]
    /// Outputs of the convolution.
    pub gathered: B::Buffer, // [T, channels]
    /// The same for the rows with requested logits.
    pub tail: B::Buffer, // [rows with logits, channels]
}

impl<B: Backend> ShortConvBuffers<B> {
    /// Allocates buffers for steps of up to `rows_max` rows.
    pub fn new(
        backend: &mut B,
        shape: &ShortConvConfig,
        rows_max: usize,
    ) -> Result<Self, EngineError> {
        Ok(Self {
            projected: backend.buffer(rows_max, shape.inputs())?,
            gathered: backend.buffer(rows_max, shape.channels)?,
            tail: backend.buffer(rows_max, shape.channels)?,
        })
    }
}

pub(super) fn mix<B: Backend>(
    enc: &mut B::Encoder<'_>,
    w: &ShortConvWeights<B>,
    args: MixerArgs<'_, B>,
    observer: &mut impl ActivationObserver<B>,
) -> Result<(), EngineError> {
    let MixerArgs { rows, tail, act, memory, residual } = args;
    let states = memory.states()?;
    observer.inputs(enc, MatrixKind::ShortConvIn, &act.normed)?;
    let buffers = act.short_convs.get_mut(w.buffers).ok_or_else(no_buffers)?;
    let projected = &mut buffers.projected;
    enc.matmul(&w.input, &rows.dense_levels, &act.normed, Write::Set, projected)?;
    enc.short_conv(&w.conv, rows, &buffers.projected, states, &mut buffers.gathered)?;
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
    let buffers = act.short_convs.get_mut(w.buffers).ok_or_else(no_buffers)?;
    observer.inputs(enc, MatrixKind::ShortConvOut, &buffers.gathered)?;
    let (levels, inputs) = (&rows.dense_levels, &mut buffers.gathered);
    residual.add(enc, &w.output, levels, inputs, &mut act.branch, &mut act.x)
}
