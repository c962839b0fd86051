//! The forward pass: the whole model on one screen.

use super::activations::Activations;
use super::weights::Weights;
use crate::backend::{Backend, Encoder};
use crate::batch::StepRows;
use crate::cancel::CancelToken;
use crate::error::EngineError;
use crate::expert::ExpertCache;
use crate::runner::StepStats;

/// What a step works on: everything that changes.
pub(super) struct Step<'a, B: Backend> {
    /// All rows; every row's keys and values are stored.
    pub rows: StepRows,
    /// Those that want logits.
    pub logit_rows: Vec<u32>,
    /// Cosines and sines of the rows' positions.
    pub angles: Vec<f32>, // [T, head_dim]
    pub act: &'a mut Activations<B>,
    pub kv: &'a mut [B::KvPool], // [layers]
    pub cancel: &'a CancelToken,
    pub stats: &'a mut StepStats,
}

/// Computes one batch, layer after layer; gives the logits of the rows that want them,
/// `[rows with logits, vocab_size]`.
pub(super) async fn forward<B: Backend>(
    (w, experts, eps): (&Weights<B>, &ExpertCache<B>, f32),
    mut enc: B::Encoder<'_>,
    step: Step<'_, B>,
) -> Result<Vec<f32>, EngineError> {
    let Step { mut rows, logit_rows, angles, act, kv, cancel, stats } = step;
    enc.embed(&w.embedding, &rows, &mut act.x)?; // [T, D]
    enc.write(&angles, &mut act.rope)?;
    let layers = w.layers.len();
    for (layer, (lw, kv)) in w.layers.iter().zip(kv).enumerate() {
        if cancel.is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        // Attention: x += Wo · attend(rope(Wqkv · norm(x))).
        enc.rms_norm(&act.x, &lw.attention_norm, eps, &mut act.normed)?;
        enc.matmul(&lw.qkv, &rows.dense_levels, &act.normed, &mut act.qkv)?;
        enc.rope_store(&lw.heads, &rows, &act.rope, &mut act.qkv, kv)?;
        if layer + 1 == layers {
            // All keys and values are stored: what follows serves the rows with logits alone.
            if logit_rows.is_empty() {
                enc.flush()?;
                return Ok(Vec::new());
            }
            rows = rows.select(&logit_rows);
            enc.gather_rows(&act.x, &logit_rows, &mut act.tail)?;
            enc.gather_rows(&act.qkv, &logit_rows, &mut act.qkv_tail)?;
            std::mem::swap(&mut act.x, &mut act.tail);
            std::mem::swap(&mut act.qkv, &mut act.qkv_tail);
        }
        enc.attend(&lw.heads, &rows, &act.qkv, kv, &mut act.attended)?;
        enc.matmul_add(&lw.attention_out, &rows.dense_levels, &act.attended, &mut act.x)?;

        // Feed-forward: x += dense(norm(x)) + Σ weight · expert(norm(x)).
        enc.rms_norm(&act.x, &lw.feed_forward_norm, eps, &mut act.normed)?;
        if let Some(shared) = &lw.shared {
            enc.ffn_add(shared, &rows.dense_levels, &act.normed, &mut act.x)?;
        }
        if let Some(router) = &lw.router {
            enc.route(router, &act.normed, &mut act.routing)?; // [T, K]
            let mut pending = experts.request(layer, &rows, &act.routing, &mut enc, stats).await?;
            while let Some(ready) = pending.next().await? {
                enc.experts(&ready, &act.routing, &act.normed, &mut act.expert_rows)?;
            }
            enc.experts_sum(&act.routing, &act.expert_rows, &mut act.x)?;
        }
    }
    enc.rms_norm(&act.x, &w.final_norm, eps, &mut act.normed)?;
    enc.matmul(&w.head, &rows.dense_levels, &act.normed, &mut act.logits)?;
    enc.read(&act.logits).await
}
