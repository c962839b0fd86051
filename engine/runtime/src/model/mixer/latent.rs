//! Multi-head latent attention, as in DeepSeek-V2 (arXiv 2405.04434, section 2.1).
//!
//! Pages hold the normed latent and the rotated shared key of each position, and nothing per head. The
//! up-projection of keys is applied to the queries instead, and the up-projection of values to the attended
//! latents.

use nestling_formats::MatrixKind;
use nestling_import::LatentConfig;

use super::{ActivationObserver, MixerArgs, no_buffers};
use nestling_core::backend::{AttentionHeads, Backend, Encoder, HeadMatrices, Linear, Write};
use nestling_core::batch::StepRows;
use nestling_core::error::EngineError;

/// Weights of one layer's latent attention.
pub struct LatentWeights<B: Backend> {
    /// Projection of the hidden state to the query latent, with its norm. `None` if queries have no latent.
    pub query_down: Option<(Linear<B>, B::Floats)>,
    /// Projection to queries: H heads of `qk_nope_head_dim + qk_rope_head_dim`.
    pub query: Linear<B>,
    /// Projection of the hidden state to latent and shared key,
    /// `[kv_lora_rank + qk_rope_head_dim, hidden_size]`.
    pub latent: Linear<B>,
    /// Projection of the unrotated part of queries to the latent space, per head.
    pub key_up: HeadMatrices<B>,
    /// Projection of attended latents to values, per head.
    pub value_up: HeadMatrices<B>,
    /// H query heads for one key head, whose first elements are the latent.
    pub heads: AttentionHeads<B>,
    /// Output projection, `[hidden_size, H * v_head_dim]`.
    pub output: Linear<B>,
    /// Index of the RoPE angles in `Activations::ropes`.
    pub rope: usize,
    /// Index of the buffers in `Activations::latent`.
    pub buffers: usize,
}

impl<B: Backend> LatentWeights<B> {
    /// Returns all matrices.
    pub fn matrices(&self) -> impl Iterator<Item = &B::Matrix> {
        let query_down = self.query_down.iter().map(|(linear, _)| &linear.matrix);
        let linears = [&self.query, &self.latent, &self.output].map(|linear| &linear.matrix);
        let heads = [&self.key_up, &self.value_up].map(|heads| &heads.matrix);
        query_down.chain(linears).chain(heads)
    }
}

/// Buffers of the layers with one shape. T = rows of the step, H = heads.
pub struct LatentBuffers<B: Backend> {
    /// Query latents before and after their norm.
    pub query_latents: [B::Buffer; 2], // [T, q_lora_rank]
    /// Queries.
    pub queries: B::Buffer, // [T, H * (qk_nope_head_dim + qk_rope_head_dim)]
    /// Latent and shared key.
    pub latents: B::Buffer, // [T, kv_lora_rank + qk_rope_head_dim]
    /// Queries in the latent space.
    pub absorbed: B::Buffer, // [T, H * (kv_lora_rank + qk_rope_head_dim)]
    /// Attended latents of the heads.
    pub attended: B::Buffer, // [T, H * kv_lora_rank]
    /// Values computed from them.
    pub values: B::Buffer, // [T, H * v_head_dim]
}

/// Numbers of columns of the buffers, in field order.
pub type LatentShape = [usize; 6];

/// Returns the buffer shape of a layer.
pub fn shape(config: &LatentConfig) -> LatentShape {
    let (heads, key) = (config.num_attention_heads, config.key_dim());
    [
        // Default: without a query latent, its buffers are empty.
        config.q_lora_rank.unwrap_or(0),
        heads * (config.qk_nope_head_dim + config.qk_rope_head_dim),
        key,
        heads * key,
        heads * config.kv_lora_rank,
        heads * config.v_head_dim,
    ]
}

impl<B: Backend> LatentBuffers<B> {
    /// Allocates buffers for steps of up to `rows_max` rows.
    pub fn new(
        backend: &mut B,
        [query_latents, queries, latents, absorbed, attended, values]: LatentShape,
        rows_max: usize,
    ) -> Result<Self, EngineError> {
        let mut buffer = |cols| backend.buffer(rows_max, cols);
        Ok(Self {
            query_latents: [buffer(query_latents)?, buffer(query_latents)?],
            queries: buffer(queries)?,
            latents: buffer(latents)?,
            absorbed: buffer(absorbed)?,
            attended: buffer(attended)?,
            values: buffer(values)?,
        })
    }
}

pub(super) fn mix<B: Backend>(
    enc: &mut B::Encoder<'_>,
    w: &LatentWeights<B>,
    args: MixerArgs<'_, B>,
    observer: &mut impl ActivationObserver<B>,
) -> Result<(), EngineError> {
    let MixerArgs { rows, tail, act, memory, residual } = args;
    let kv = memory.pages()?;
    observer.inputs(enc, MatrixKind::Query, &act.normed)?;
    let buffers = act.latent.get_mut(w.buffers).ok_or_else(no_buffers)?;
    let rope = act.ropes.get(w.rope).ok_or_else(no_buffers)?;
    let latent = std::slice::from_ref(&w.latent);
    enc.matmul(latent, &rows.dense_levels, &act.normed, Write::Set, &mut buffers.latents)?;
    enc.rope(&w.heads, rows, rope, &mut buffers.latents, Some(kv))?;
    if let Some(tail) = tail {
        // The rest is computed only for the rows with requested logits.
        if tail.is_empty() {
            return Ok(());
        }
        rows.keep(tail);
        act.keep(enc, tail)?;
    }
    let buffers = act.latent.get_mut(w.buffers).ok_or_else(no_buffers)?;
    let rope = act.ropes.get(w.rope).ok_or_else(no_buffers)?;
    queries(enc, w, rows, &act.normed, buffers, observer)?;
    let LatentBuffers { queries, absorbed, attended, values, .. } = buffers;
    observer.head_inputs(enc, MatrixKind::KeyUp, queries, &w.key_up)?;
    enc.matmul_heads(&w.key_up, &rows.dense_levels, queries, absorbed)?;
    enc.rope(&w.heads, rows, rope, absorbed, None)?;
    enc.attend(&w.heads, rows, absorbed, kv, attended)?;
    observer.head_inputs(enc, MatrixKind::ValueUp, attended, &w.value_up)?;
    enc.matmul_heads(&w.value_up, &rows.dense_levels, attended, values)?;
    observer.inputs(enc, MatrixKind::Output, values)?;
    residual.add(enc, &w.output, &rows.dense_levels, values, &mut act.branch, &mut act.x)
}

/// Computes the queries of the rows, from their latents if the layer has any.
fn queries<B: Backend>(
    enc: &mut B::Encoder<'_>,
    w: &LatentWeights<B>,
    rows: &StepRows,
    normed: &B::Buffer,
    buffers: &mut LatentBuffers<B>,
    observer: &mut impl ActivationObserver<B>,
) -> Result<(), EngineError> {
    let (levels, query) = (&rows.dense_levels, std::slice::from_ref(&w.query));
    let Some((down, norm)) = &w.query_down else {
        return enc.matmul(query, levels, normed, Write::Set, &mut buffers.queries);
    };
    let [latents, normed_latents] = &mut buffers.query_latents;
    enc.matmul(std::slice::from_ref(down), levels, normed, Write::Set, latents)?;
    enc.rms_norm(latents, norm, w.heads.eps, Write::Set, normed_latents)?;
    observer.inputs(enc, MatrixKind::QueryUp, normed_latents)?;
    enc.matmul(query, levels, normed_latents, Write::Set, &mut buffers.queries)
}
