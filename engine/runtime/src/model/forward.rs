//! The forward pass: the whole model on one screen.

use super::activations::Activations;
use super::feed_forward;
use super::memory::LayerMemory;
use super::mixer::{Ending, Mixing, Nobody, mix};
use super::weights::Weights;
use nestling_core::backend::{Backend, Encoder, Write};
use nestling_core::batch::{StepRows, Wanted};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::routing_trace::TraceStep;
use nestling_core::runner::{StepOutput, StepStats};
use nestling_experts::expert::{EmbeddedRows, ExpertCache, RequestScratch};

/// How many layers ahead experts are predicted at the most.
const LAYERS_AHEAD: usize = 2;

/// What a step works on: everything that changes.
pub(super) struct Step<'a, B: Backend> {
    /// All rows; every row's keys and values are stored.
    pub rows: &'a mut StepRows,
    /// Those that want logits.
    pub logit_rows: &'a [u32],
    /// Cosines and sines of the rows' positions, for every kind of angles.
    pub angles: &'a [Vec<f32>], // [T, dims]
    pub act: &'a mut Activations<B>,
    pub embedded: &'a mut EmbeddedRows,
    pub requests: &'a mut RequestScratch<B>,
    pub predictions: &'a mut RequestScratch<B>,
    pub memory: &'a mut [LayerMemory<B>], // [layers]
    /// A routing to compute with, in place of what the routers choose.
    pub replayed: Option<&'a TraceStep>,
    pub cancel: &'a CancelToken,
    pub stats: &'a mut StepStats,
    pub wanted: Wanted,
    /// Gets what is wanted of the rows that want logits.
    pub output: &'a mut StepOutput,
}

/// Computes one batch, layer after layer; again from the experts on that a device lacked, until it
/// lacked none.
pub(super) async fn forward<B: Backend>(
    (w, experts, eps): (&Weights<B>, &mut ExpertCache<B>, f32),
    enc: B::Encoder<'_>,
    step: Step<'_, B>,
) -> Result<(), EngineError> {
    let mut pass = Pass { w, experts, eps, enc, step };
    pass.begin()?;
    let (mut missed, mut ahead) = (pass.layers(None, usize::MAX).await?, Lookahead::default());
    while let Some(layer) = missed {
        missed = pass.layers(Some(layer), ahead.after(layer)).await?;
    }
    Ok(())
}

/// How many layers are computed before one looks whether a device lacked experts: as long as it lacks
/// many, what comes after is computed in vain.
#[derive(Debug, Default)]
struct Lookahead {
    /// The layer that lacked experts last.
    last: usize,
}

impl Lookahead {
    /// Layers after one that lacked experts: twice as many as there were since the one before.
    fn after(&mut self, layer: usize) -> usize {
        let since = layer.saturating_sub(std::mem::replace(&mut self.last, layer));
        (2 * since).max(1)
    }
}

/// One batch on its way through the layers.
struct Pass<'a, 'e, B: Backend + 'e> {
    w: &'a Weights<B>,
    experts: &'a mut ExpertCache<B>,
    eps: f32,
    enc: B::Encoder<'e>,
    step: Step<'a, B>,
}

impl<B: Backend> Pass<'_, '_, B> {
    fn begin(&mut self) -> Result<(), EngineError> {
        let Self { w, enc, step, .. } = self;
        let Step { rows, angles, act, embedded, .. } = step;
        w.embedding.embed(enc, rows, (embedded, &mut act.x), step.cancel)?; // [T, D]
        scale::<B>(enc, w.multipliers.embedding, &mut act.x)?;
        angles.iter().zip(&mut act.ropes).try_for_each(|(angles, rope)| enc.write(angles, rope))
    }

    /// Computes all layers, or those from the experts of `missed` on, and the logits. Gives the layer
    /// of which a device lacked experts; it is looked for after so many layers.
    async fn layers(
        &mut self,
        missed: Option<usize>,
        mut ahead: usize,
    ) -> Result<Option<usize>, EngineError> {
        let mut unsettled = 0;
        for layer in missed.unwrap_or(0)..self.w.layers.len() {
            if self.step.cancel.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            let is_known = missed == Some(layer);
            if !is_known {
                if self.tail(layer).is_some()
                    && let Some(missed) = self.settle().await?
                {
                    return Ok(Some(missed));
                }
                if !self.until_experts(layer)? {
                    return Ok(None);
                }
            }
            if is_known || !self.ask_device(layer)? {
                if let Some(missed) = self.settle().await? {
                    return Ok(Some(missed));
                }
                self.wait_for_experts(layer).await?;
            } else if unsettled + 1 >= ahead {
                (unsettled, ahead) = (0, ahead.saturating_mul(2));
                if let Some(missed) = self.settle().await? {
                    return Ok(Some(missed));
                }
            } else {
                unsettled += 1;
            }
            self.after_experts(layer)?;
        }
        self.logits().await
    }

    /// The rows of a layer that want more than that their state is stored, if these are not all.
    fn tail(&self, layer: usize) -> Option<&[u32]> {
        let wanted = self.step.logit_rows;
        let is_last = layer + 1 == self.w.layers.len();
        Some(wanted).filter(|tail| is_last && tail.len() < self.step.rows.len())
    }

    /// A layer up to the choice of experts; false if nothing more is wanted.
    fn until_experts(&mut self, layer: usize) -> Result<bool, EngineError> {
        // What tokens see of each other: x += mix(norm(x)).
        let tail = self.step.logit_rows;
        let tail = self.tail(layer).map(|_| tail);
        let Self { w, eps, enc, step, .. } = self;
        let (lw, eps) = (&w.layers[layer], *eps);
        let Step { rows, act, memory, replayed, .. } = step;
        enc.rms_norm(&act.x, &lw.attention_norm, eps, Write::Set, &mut act.normed)?;
        let multiplier = w.multipliers.residual;
        let norm = lw.norms_after.as_ref().map(|norms| (&norms.attention, eps));
        let ending = Ending { multiplier, norm };
        let memory = &mut memory[layer];
        let mixing = Mixing { rows, tail, act, memory, ending };
        mix(enc, &lw.mixer, mixing, &mut Nobody)?;
        if tail.is_some_and(<[u32]>::is_empty) {
            enc.flush()?;
            return Ok(false);
        }

        // Feed-forward: x += dense(norm(x)) + Σ weight · expert(norm(x)).
        feed_forward::begin(enc, lw, (&rows.dense_levels, eps), act)?;
        if let Some(router) = &lw.router {
            feed_forward::route(enc, (lw, router), eps, act)?;
            if let Some(routing) = replayed.and_then(|step| step.layers.get(layer)) {
                enc.write_routing(&routing.routing(rows.len()), &mut act.routing)?;
            }
        }
        Ok(true)
    }

    /// Leaves a layer's experts to the device; false where the step must wait for them.
    fn ask_device(&mut self, layer: usize) -> Result<bool, EngineError> {
        let Self { w, experts, enc, step, .. } = self;
        let Some(router) = &w.layers[layer].router else { return Ok(true) };
        let Step { rows, act, replayed, .. } = step;
        if replayed.is_some() && experts.memory().is_some() {
            // What the host writes takes place whether or not experts were missing before.
            return Ok(false);
        }
        let uses = (layer, router.num_experts_per_tok);
        experts.ask_device(uses, rows, (&act.routing, &act.normed), &mut act.expert_rows, enc)
    }

    /// Waits for a layer's experts, and computes those that are there while others come.
    async fn wait_for_experts(&mut self, layer: usize) -> Result<(), EngineError> {
        let Self { w, experts, eps, enc, step } = self;
        let Step { rows, act, requests, predictions, cancel, stats, .. } = step;
        let router = w.layers[layer].router.as_ref();
        let per_token = router.map_or(0, |router| router.num_experts_per_tok);
        let mut pending =
            experts.request(layer, rows, (&act.normed, &act.routing), enc, requests).await?;
        let ahead = (1..=LAYERS_AHEAD)
            .map_while(|distance| Some((distance, w.layers.get(layer + distance)?.routing()?)));
        for (distance, (norm, router)) in ahead {
            if !pending.reads_ahead(distance) {
                break;
            }
            // A later layer's router, on a state that lacks this layer's experts.
            enc.rms_norm(&act.x, norm, *eps, Write::Set, &mut act.ahead)?;
            enc.route(router, &act.ahead, &mut act.predicted)?;
            let (layer, predicted) = (layer + distance, (&act.ahead, &act.predicted));
            pending.read_ahead((layer, rows), predicted, enc, predictions).await?;
        }
        pending.read_host_inputs(&act.normed, enc).await?;
        while let Some(ready) = pending.next(enc, stats).await? {
            if cancel.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            enc.experts(ready, &act.routing, &act.normed, &mut act.expert_rows)?;
            pending.compute_on_host(per_token, &mut act.expert_rows, enc, stats)?;
        }
        Ok(())
    }

    fn after_experts(&mut self, layer: usize) -> Result<(), EngineError> {
        let Self { w, eps, enc, step, .. } = self;
        let lw = &w.layers[layer];
        if lw.router.is_some() {
            feed_forward::add_experts(enc, lw, (step.rows.len(), *eps), step.act)?;
        }
        feed_forward::end(enc, lw, *eps, step.act)
    }

    /// Waits for the device if it may have lacked experts; gives the layer of which it did.
    async fn settle(&mut self) -> Result<Option<usize>, EngineError> {
        let Self { experts, enc, step, .. } = self;
        if !experts.is_unsettled() {
            return Ok(None);
        }
        enc.finish().await?;
        Ok(experts.settle(enc, step.stats))
    }

    async fn logits(&mut self) -> Result<Option<usize>, EngineError> {
        let Self { w, experts, eps, enc, step } = self;
        let Step { rows, act, stats, output, .. } = step;
        enc.rms_norm(&act.x, &w.final_norm, *eps, Write::Set, &mut act.normed)?;
        enc.matmul(&w.head, &rows.dense_levels, &act.normed, Write::Set, &mut act.logits)?;
        scale::<B>(enc, w.multipliers.logits, &mut act.logits)?;
        if let Some(cap) = w.softcap {
            enc.softcap(cap, &mut act.logits)?;
        }
        let StepOutput { logits, best, .. } = &mut **output;
        match step.wanted {
            Wanted::Logits => enc.read_into(&act.logits, logits).await?,
            Wanted::Best(among) => enc.argmax_into(&act.logits, among, best).await?,
        }
        Ok(experts.settle(enc, stats))
    }
}

/// Multiplies by a constant that is 1 in most families.
fn scale<B: Backend>(
    enc: &mut B::Encoder<'_>,
    factor: f32,
    x: &mut B::Buffer,
) -> Result<(), EngineError> {
    if factor == 1.0 { Ok(()) } else { enc.scale(factor, x) }
}
