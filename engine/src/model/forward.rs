//! The forward pass: the whole model on one screen.

use super::activations::Activations;
use super::weights::{LayerWeights, Weights};
use crate::backend::{Backend, Encoder};
use crate::batch::StepRows;
use crate::cancel::CancelToken;
use crate::error::EngineError;
use crate::expert::{ExpertCache, RequestScratch};
use crate::runner::StepStats;

/// What a step works on: everything that changes.
pub(super) struct Step<'a, B: Backend> {
    /// All rows; every row's keys and values are stored.
    pub rows: &'a mut StepRows,
    /// Those that want logits.
    pub logit_rows: &'a [u32],
    /// Cosines and sines of the rows' positions.
    pub angles: &'a [f32], // [T, head_dim]
    pub act: &'a mut Activations<B>,
    pub requests: &'a mut RequestScratch<B>,
    pub predictions: &'a mut RequestScratch<B>,
    pub kv: &'a mut [B::KvPool], // [layers]
    pub cancel: &'a CancelToken,
    pub stats: &'a mut StepStats,
    /// Gets the logits of the rows that want them.
    pub logits: &'a mut Vec<f32>, // [rows with logits, vocab_size]
}

/// Computes one batch, layer after layer.
pub(super) async fn forward<B: Backend>(
    (w, experts, eps): (&Weights<B>, &mut ExpertCache<B>, f32),
    mut enc: B::Encoder<'_>,
    step: Step<'_, B>,
) -> Result<(), EngineError> {
    let Step { rows, logit_rows, angles, act, kv, cancel, stats, logits, .. } = step;
    let (requests, predictions) = (step.requests, step.predictions);
    enc.embed(&w.embedding, rows, &mut act.x)?; // [T, D]
    enc.write(angles, &mut act.rope)?;
    let layers = w.layers.len();
    for (layer, (lw, kv)) in w.layers.iter().zip(kv).enumerate() {
        if cancel.is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        // Attention: x += Wo · attend(rope(Wqkv · norm(x))).
        enc.rms_norm(&act.x, &lw.attention_norm, eps, &mut act.normed)?;
        let queries = if layer + 1 < layers || logit_rows.len() == rows.len() {
            enc.matmul(&lw.qkv, &rows.dense_levels, &act.normed, &mut act.qkv)?;
            enc.rope_store(&lw.heads, rows, &act.rope, &mut act.qkv, kv)?;
            &act.qkv
        } else {
            // Keys and values of all rows; all else serves the rows with logits alone.
            enc.matmul(&lw.qkv[1..], &rows.dense_levels, &act.normed, &mut act.keys_values)?;
            enc.rope_store(&lw.heads, rows, &act.rope, &mut act.keys_values, kv)?;
            if logit_rows.is_empty() {
                logits.clear();
                return enc.flush();
            }
            rows.keep(logit_rows);
            act.keep(&mut enc, logit_rows)?;
            enc.matmul(&lw.qkv[..1], &rows.dense_levels, &act.normed, &mut act.queries)?;
            enc.rope_queries(&lw.heads, rows, &act.rope, &mut act.queries)?;
            &act.queries
        };
        enc.attend(&lw.heads, rows, queries, kv, &mut act.attended)?;
        enc.matmul_add(&lw.attention_out, &rows.dense_levels, &act.attended, &mut act.x)?;

        // Feed-forward: x += dense(norm(x)) + Σ weight · expert(norm(x)).
        enc.rms_norm(&act.x, &lw.feed_forward_norm, eps, &mut act.normed)?;
        if let Some(shared) = &lw.shared {
            enc.ffn_add(shared, &rows.dense_levels, &act.normed, &mut act.x)?;
        }
        if let Some(router) = &lw.router {
            enc.route(router, &act.normed, &mut act.routing)?; // [T, K]
            let mut pending =
                experts.request(layer, rows, &act.routing, &mut enc, requests).await?;
            if let Some((norm, router)) = w.layers.get(layer + 1).and_then(LayerWeights::routing)
                && pending.reads_ahead()
            {
                // The next layer's router, on a state that lacks this layer's experts.
                enc.rms_norm(&act.x, norm, eps, &mut act.ahead)?;
                enc.route(router, &act.ahead, &mut act.predicted)?;
                pending.read_ahead(rows, &act.predicted, &mut enc, predictions).await?;
            }
            while let Some(ready) = pending.next(&mut enc, stats).await? {
                if cancel.is_cancelled() {
                    return Err(EngineError::Cancelled);
                }
                enc.experts(ready, &act.routing, &act.normed, &mut act.expert_rows)?;
            }
            enc.experts_sum(&act.routing, &act.expert_rows, &mut act.x)?;
        }
    }
    enc.rms_norm(&act.x, &w.final_norm, eps, &mut act.normed)?;
    enc.matmul(&w.head, &rows.dense_levels, &act.normed, &mut act.logits)?;
    enc.read_into(&act.logits, logits).await
}
