//! Attention: x += Wo · gate(attend(rope(norm(Wqkv · x)))).

use nestling_formats::MatrixKind;
use nestling_import::{AttentionConfig, GateFunction};

use super::{ActivationObserver, MixerArgs, no_buffers};
use nestling_core::backend::{AttentionHeads, Backend, Encoder, Linear, Write};
use nestling_core::error::EngineError;

/// Weights of one layer's attention.
pub struct AttentionWeights<B: Backend> {
    /// Query, key and value projections.
    pub qkv: [Linear<B>; 3],
    /// Gates of the outputs of the heads, if any.
    pub gate: Option<GateWeights<B>>,
    /// Shapes and norms of the heads.
    pub heads: AttentionHeads<B>,
    /// Output projection, `[hidden_size, num_attention_heads * head_dim]`.
    pub output: Linear<B>,
    /// Index of the RoPE angles in `Activations::ropes`.
    pub rope: usize,
    /// Index of the buffers in `Activations::attention`.
    pub buffers: usize,
}

/// Gates of one layer's attention.
pub struct GateWeights<B: Backend> {
    /// Function of the projection, which multiplies the outputs of the heads.
    pub function: GateFunction,
    /// Projection of the layer's input.
    pub projection: Linear<B>,
}

/// Buffers of the layers with one head shape. T = rows of the step.
pub struct AttentionBuffers<B: Backend> {
    /// Queries, keys and values, concatenated.
    pub qkv: B::Buffer, // [T, (H + 2 G) * head_dim]
    /// Keys and values of the last layer, if only some rows have requested logits.
    pub keys_values: B::Buffer, // [T, 2 G * head_dim]
    /// Queries of those rows.
    pub queries: B::Buffer, // [rows with logits, H * head_dim]
    /// Outputs of the heads.
    pub attended: B::Buffer, // [T, H * head_dim]
    /// Gates before their function.
    pub gate: B::Buffer, // [T, gates]
}

/// Dimensions that determine the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    heads: usize,
    key_heads: usize,
    head_dim: usize,
    gates: usize,
}

/// Returns the head shape of a layer.
pub fn shape(config: &AttentionConfig) -> AttentionShape {
    AttentionShape {
        heads: config.num_attention_heads,
        key_heads: config.num_key_value_heads,
        head_dim: config.head_dim,
        gates: config.output_gate.count(config.num_attention_heads, config.head_dim),
    }
}

impl<B: Backend> AttentionBuffers<B> {
    /// Allocates buffers for steps of up to `rows_max` rows.
    pub fn new(
        backend: &mut B,
        shape: AttentionShape,
        rows_max: usize,
    ) -> Result<Self, EngineError> {
        let AttentionShape { heads: h, key_heads: g, head_dim: d, gates } = shape;
        Ok(Self {
            qkv: backend.buffer(rows_max, (h + 2 * g) * d)?,
            keys_values: backend.buffer(rows_max, 2 * g * d)?,
            queries: backend.buffer(rows_max, h * d)?,
            attended: backend.buffer(rows_max, h * d)?,
            // Devices have no empty buffers.
            gate: backend.buffer(rows_max, gates.max(1))?,
        })
    }
}

pub(super) fn mix<B: Backend>(
    enc: &mut B::Encoder<'_>,
    w: &AttentionWeights<B>,
    args: MixerArgs<'_, B>,
    observer: &mut impl ActivationObserver<B>,
) -> Result<(), EngineError> {
    let MixerArgs { rows, tail, act, memory, residual } = args;
    let kv = memory.pages()?;
    observer.inputs(enc, MatrixKind::Query, &act.normed)?;
    if let Some(tail) = tail {
        // Keys and values are computed for all rows, everything else only for the rows with requested logits.
        let buffers = act.attention.get_mut(w.buffers).ok_or_else(no_buffers)?;
        let rope = act.ropes.get(w.rope).ok_or_else(no_buffers)?;
        let keys_values = &mut buffers.keys_values;
        enc.matmul(&w.qkv[1..], &rows.dense_levels, &act.normed, Write::Set, keys_values)?;
        enc.rope(&w.heads, rows, rope, keys_values, Some(kv))?;
        if tail.is_empty() {
            return Ok(());
        }
        rows.keep(tail);
        act.keep(enc, tail)?;
    }
    let buffers = act.attention.get_mut(w.buffers).ok_or_else(no_buffers)?;
    let rope = act.ropes.get(w.rope).ok_or_else(no_buffers)?;
    let queries = match tail {
        None => {
            let qkv = &mut buffers.qkv;
            enc.matmul(&w.qkv, &rows.dense_levels, &act.normed, Write::Set, qkv)?;
            enc.rope(&w.heads, rows, rope, qkv, Some(kv))?;
            &buffers.qkv
        }
        Some(_) => {
            let queries = &mut buffers.queries;
            enc.matmul(&w.qkv[..1], &rows.dense_levels, &act.normed, Write::Set, queries)?;
            enc.rope(&w.heads, rows, rope, queries, None)?;
            &buffers.queries
        }
    };
    let attended = &mut buffers.attended;
    enc.attend(&w.heads, rows, queries, kv, attended)?;
    if let Some(GateWeights { function, projection }) = &w.gate {
        let gates = &mut buffers.gate;
        let projection = std::slice::from_ref(projection);
        enc.matmul(projection, &rows.dense_levels, &act.normed, Write::Set, gates)?;
        enc.gate(*function, gates, attended)?;
    }
    observer.inputs(enc, MatrixKind::Output, attended)?;
    residual.add(enc, &w.output, &rows.dense_levels, attended, &mut act.branch, &mut act.x)
}
