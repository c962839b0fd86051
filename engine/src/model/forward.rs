//! The forward pass: the whole model on one screen.

use super::activations::Activations;
use super::feed_forward;
use super::memory::LayerMemory;
use super::mixer::{Ending, Mixing, Nobody, mix};
use super::weights::{LayerWeights, Weights};
use crate::backend::{Backend, Encoder};
use crate::batch::StepRows;
use crate::cancel::CancelToken;
use crate::error::EngineError;
use crate::expert::{ExpertCache, RequestScratch};
use crate::runner::StepStats;
use crate::simulate::TraceStep;

/// What a step works on: everything that changes.
pub(super) struct Step<'a, B: Backend> {
    /// All rows; every row's keys and values are stored.
    pub rows: &'a mut StepRows,
    /// Those that want logits.
    pub logit_rows: &'a [u32],
    /// Cosines and sines of the rows' positions, for every kind of angles.
    pub angles: &'a [Vec<f32>], // [T, dims]
    pub act: &'a mut Activations<B>,
    pub requests: &'a mut RequestScratch<B>,
    pub predictions: &'a mut RequestScratch<B>,
    pub memory: &'a mut [LayerMemory<B>], // [layers]
    /// A routing to compute with, in place of what the routers choose.
    pub replayed: Option<&'a TraceStep>,
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
    let Step { rows, logit_rows, angles, act, memory, cancel, stats, logits, .. } = step;
    let (requests, predictions) = (step.requests, step.predictions);
    enc.embed(&w.embedding, rows, &mut act.x)?; // [T, D]
    scale::<B>(&mut enc, w.multipliers.embedding, &mut act.x)?;
    for (angles, rope) in angles.iter().zip(&mut act.ropes) {
        enc.write(angles, rope)?;
    }
    let layers = w.layers.len();
    for (layer, (lw, memory)) in w.layers.iter().zip(memory).enumerate() {
        if cancel.is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        // What tokens see of each other: x += mix(norm(x)).
        let tail = Some(logit_rows).filter(|tail| layer + 1 == layers && tail.len() < rows.len());
        enc.rms_norm(&act.x, &lw.attention_norm, eps, &mut act.normed)?;
        let multiplier = w.multipliers.residual;
        let norm = lw.norms_after.as_ref().map(|norms| (&norms.attention, eps));
        let ending = Ending { multiplier, norm };
        let mixing = Mixing { rows: &mut *rows, tail, act: &mut *act, memory, ending };
        mix(&mut enc, &lw.mixer, mixing, &mut Nobody)?;
        if tail.is_some_and(<[u32]>::is_empty) {
            logits.clear();
            return enc.flush();
        }

        // Feed-forward: x += dense(norm(x)) + Σ weight · expert(norm(x)).
        feed_forward::begin(&mut enc, lw, (&rows.dense_levels, eps), act)?;
        if let Some(router) = &lw.router {
            feed_forward::route(&mut enc, (lw, router), eps, act)?;
            if let Some(routing) = step.replayed.and_then(|step| step.layers.get(layer)) {
                enc.write_routing(&routing.routing(rows.len()), &mut act.routing)?;
            }
            let (uses, seen) = ((layer, router.num_experts_per_tok), (&act.routing, &act.normed));
            if !experts.ask_device(uses, rows, seen, &mut act.expert_rows, &mut enc)? {
                let mut pending = experts
                    .request(layer, rows, (&act.normed, &act.routing), &mut enc, requests)
                    .await?;
                if let Some((norm, router)) =
                    w.layers.get(layer + 1).and_then(LayerWeights::routing)
                    && pending.reads_ahead()
                {
                    // The next layer's router, on a state that lacks this layer's experts.
                    enc.rms_norm(&act.x, norm, eps, &mut act.ahead)?;
                    enc.route(router, &act.ahead, &mut act.predicted)?;
                    let predicted = (&act.ahead, &act.predicted);
                    pending.read_ahead(rows, predicted, &mut enc, predictions).await?;
                }
                while let Some(ready) = pending.next(&mut enc, stats).await? {
                    if cancel.is_cancelled() {
                        return Err(EngineError::Cancelled);
                    }
                    enc.experts(ready, &act.routing, &act.normed, &mut act.expert_rows)?;
                }
            }
            feed_forward::add_experts(&mut enc, lw, (rows.len(), eps), act)?;
        }
        feed_forward::end(&mut enc, lw, eps, act)?;
    }
    enc.rms_norm(&act.x, &w.final_norm, eps, &mut act.normed)?;
    enc.matmul(&w.head, &rows.dense_levels, &act.normed, &mut act.logits)?;
    scale::<B>(&mut enc, w.multipliers.logits, &mut act.logits)?;
    if let Some(cap) = w.softcap {
        enc.softcap(cap, &mut act.logits)?;
    }
    enc.read_into(&act.logits, logits).await?;
    experts.count_routed(&mut enc, stats);
    Ok(())
}

/// Multiplies by a constant that is 1 in most families.
fn scale<B: Backend>(
    enc: &mut B::Encoder<'_>,
    factor: f32,
    x: &mut B::Buffer,
) -> Result<(), EngineError> {
    if factor == 1.0 { Ok(()) } else { enc.scale(factor, x) }
}
