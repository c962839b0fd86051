//! Attention: x += Wo · gate(attend(rope(norm(Wqkv · x)))).

use nestling_formats::{Level, MatrixKind};
use nestling_import::{AttentionConfig, GateFunction, LayerConfig, TokenMixer};

use super::{ActivationObserver, MixerArgs, no_buffers};
use nestling_core::backend::{AttentionHeads, Backend, Encoder, Linear, Write};
use nestling_core::error::EngineError;
use nestling_core::group::RankShare;
use nestling_core::kv_heads::{HeldHeads, KvDivision};

/// Weights of one layer's attention.
pub struct AttentionWeights<B: Backend> {
    /// Query, key and value projections.
    pub qkv: [Linear<B>; 3],
    /// Gates of the outputs of the heads, if any.
    pub gate: Option<GateWeights<B>>,
    /// Shapes and norms of the heads.
    pub heads: AttentionHeads<B>,
    /// Number of key heads of all ranks, if the rank's heads are some of them.
    pub key_heads_of_all: Option<usize>,
    /// Output projection, `[hidden_size, num_attention_heads * head_dim]` of all heads.
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
    /// True if the gates are those of the rank's heads, of which other ranks have more.
    pub of_own_heads: bool,
}

impl<B: Backend> GateWeights<B> {
    /// Multiplies attended heads with their gates.
    fn apply(
        &self,
        enc: &mut B::Encoder<'_>,
        levels: &[Level],
        inputs: &B::Buffer,       // [T, hidden_size]
        gates: &mut B::Buffer,    // [T, gates]
        attended: &mut B::Buffer, // [T, heads * head_dim]
    ) -> Result<(), EngineError> {
        let projection = std::slice::from_ref(&self.projection);
        enc.matmul(projection, levels, inputs, Write::Set, gates)?;
        enc.gate(self.function, gates, attended)
    }
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
    /// The same of all ranks, if the rank's heads are some of them.
    pub of_all_ranks: Option<B::Buffer>, // [T, heads of all ranks * head_dim]
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
    /// Query heads of all ranks, if the rank's heads are some of them.
    heads_of_all: Option<usize>,
}

/// Returns the shape of the heads that a rank computes of a layer, or `None` without attention per head.
pub fn shape(
    layer: &LayerConfig,
    division: KvDivision,
    share: RankShare,
) -> Option<AttentionShape> {
    let TokenMixer::Attention(config) = &layer.mixer else { return None };
    Some(shape_of(config, division.held_heads(layer, share).as_ref()))
}

/// Returns the shape of the heads of a layer, or of those that a rank holds.
pub fn shape_of(config: &AttentionConfig, held: Option<&HeldHeads>) -> AttentionShape {
    let AttentionConfig { num_attention_heads, num_key_value_heads, head_dim, .. } = *config;
    let gates = config.output_gate.count(num_attention_heads, head_dim);
    let whole = AttentionShape {
        heads: num_attention_heads,
        key_heads: num_key_value_heads,
        head_dim,
        gates,
        heads_of_all: None,
    };
    let Some(held) = held else { return whole };
    AttentionShape {
        heads: held.queries.len(),
        key_heads: held.keys.len(),
        gates: held.gates.as_ref().map_or(gates, ExactSizeIterator::len),
        heads_of_all: Some(num_attention_heads),
        ..whole
    }
}

impl<B: Backend> AttentionBuffers<B> {
    /// Allocates buffers for steps of up to `rows_max` rows.
    pub fn new(
        backend: &mut B,
        shape: AttentionShape,
        rows_max: usize,
    ) -> Result<Self, EngineError> {
        let AttentionShape { heads: h, key_heads: g, head_dim: d, gates, heads_of_all } = shape;
        let of_all_ranks = heads_of_all.map(|all| backend.buffer(rows_max, all * d));
        Ok(Self {
            qkv: backend.buffer(rows_max, (h + 2 * g) * d)?,
            keys_values: backend.buffer(rows_max, 2 * g * d)?,
            queries: backend.buffer(rows_max, h * d)?,
            attended: backend.buffer(rows_max, h * d)?,
            of_all_ranks: of_all_ranks.transpose()?,
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
    let (attended, gates) = (&mut buffers.attended, &mut buffers.gate);
    enc.attend(&w.heads, rows, queries, kv, attended)?;
    let (own_gate, gate) = match &w.gate {
        Some(gate) if gate.of_own_heads => (Some(gate), None),
        gate => (None, gate.as_ref()),
    };
    if let Some(gate) = own_gate {
        gate.apply(enc, &rows.dense_levels, &act.normed, gates, attended)?;
    }
    let attended = match (w.key_heads_of_all, &mut buffers.of_all_ranks) {
        (Some(key_heads), Some(of_all_ranks)) => {
            enc.gather_heads(attended, key_heads, of_all_ranks)?;
            of_all_ranks
        }
        _ => attended,
    };
    if let Some(gate) = gate {
        gate.apply(enc, &rows.dense_levels, &act.normed, gates, attended)?;
    }
    observer.inputs(enc, MatrixKind::Output, attended)?;
    residual.add(enc, &w.output, &rows.dense_levels, attended, &mut act.branch, &mut act.x)
}
