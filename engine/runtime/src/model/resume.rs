//! Execution of a step: layer after layer, resuming at the experts that the device missed.
//!
//! A device with expert tables looks up a layer's experts itself: the layer is recorded as if all were
//! resident, and the host does not wait. If an expert is missing, the device skips it and everything after
//! it. The host detects the miss at its next wait: at the end, before a layer whose experts need the host,
//! and every few layers while misses are frequent. The step then resumes at that layer's experts, whose uses
//! are known by then. The host waits for them as it does where a device cannot look up experts.

use super::layer::{Graph, Step, predict};
use super::weights::Weights;
use nestling_core::backend::{Backend, Encoder};
use nestling_core::error::EngineError;
use nestling_experts::expert::{ExpertCache, RoutedInputs};

/// Maximum number of layers between a layer and the layer whose experts are predicted.
const PREFETCH_DISTANCE_MAX: usize = 2;

pub(super) async fn forward<B: Backend>(
    w: &Weights<B>,
    experts: &mut ExpertCache<B>,
    eps: f32,
    enc: B::Encoder<'_>,
    step: Step<'_, B>,
) -> Result<(), EngineError> {
    let mut pass = Pass { graph: Graph { w, eps, enc, step }, experts };
    let mut resume = Resume::default();
    pass.graph.embed()?;
    while let Some(missed) = pass.run(&mut resume).await? {
        resume.rewind(missed);
    }
    Ok(())
}

/// Layer at which a step resumes, and the interval at which the host checks for misses.
///
/// While misses are frequent, long intervals waste the layers recorded after a miss.
#[derive(Debug)]
struct Resume {
    /// Layer of the last miss. Everything before its experts is computed.
    missed: Option<usize>,
    /// Number of layers until the next check.
    interval: usize,
    /// Number of layers left to the device since the last check.
    recorded: usize,
}

impl Default for Resume {
    fn default() -> Self {
        Self { missed: None, interval: usize::MAX, recorded: 0 }
    }
}

impl Resume {
    /// Resumes at the experts of layer `missed`. The next check comes after twice the distance to the
    /// previous miss.
    fn rewind(&mut self, missed: usize) {
        // Default: before the first miss, the distance counts from the first layer.
        let since = missed.saturating_sub(self.missed.unwrap_or(0));
        *self = Self { missed: Some(missed), interval: (2 * since).max(1), recorded: 0 };
    }

    fn first(&self) -> usize {
        // Default: without a miss, no layer is computed yet.
        self.missed.unwrap_or(0)
    }

    /// Counts a layer left to the device. Returns true if the host should check for misses.
    fn is_due(&mut self) -> bool {
        self.recorded += 1;
        if self.recorded < self.interval {
            return false;
        }
        (self.recorded, self.interval) = (0, self.interval.saturating_mul(2));
        true
    }
}

struct Pass<'a, 'e, B: Backend + 'e> {
    graph: Graph<'a, 'e, B>,
    experts: &'a mut ExpertCache<B>,
}

impl<B: Backend> Pass<'_, '_, B> {
    /// Computes layers from the resume point, and the outputs. Returns the layer of a miss, if any.
    async fn run(&mut self, resume: &mut Resume) -> Result<Option<usize>, EngineError> {
        for layer in resume.first()..self.graph.w.layers.len() {
            if self.graph.step.cancel.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            let is_resumed = resume.missed == Some(layer);
            if !is_resumed {
                // The last layer discards rows without requested logits, so earlier misses must be resolved
                // first.
                if self.graph.narrows(layer)
                    && let Some(missed) = self.resolve_misses().await?
                {
                    return Ok(Some(missed));
                }
                if !self.graph.until_experts(layer)? {
                    return Ok(None);
                }
            }
            let is_on_device = !is_resumed && self.try_device_routing(layer)?;
            if (!is_on_device || resume.is_due())
                && let Some(missed) = self.resolve_misses().await?
            {
                return Ok(Some(missed));
            }
            if !is_on_device {
                self.compute_experts(layer).await?;
            }
            self.graph.after_experts(layer)?;
        }
        self.graph.logits().await?;
        Ok(self.experts.resolve_misses(&mut self.graph.enc, self.graph.step.stats))
    }

    /// Leaves a layer's experts to the device. Returns false if the host must wait for them.
    fn try_device_routing(&mut self, layer: usize) -> Result<bool, EngineError> {
        let Self { graph: Graph { w, enc, step, .. }, experts } = self;
        let Some(router) = &w.layers[layer].router else { return Ok(true) };
        let Step { rows, act, replayed, .. } = step;
        if replayed.is_some() && experts.memory().is_some() {
            // The host's write of a replayed routing is executed even after an earlier miss, so the host must
            // wait.
            return Ok(false);
        }
        let per_token = router.num_experts_per_tok;
        let inputs = RoutedInputs { routing: &act.routing, x: &act.normed };
        experts.try_device_routing(layer, per_token, rows, inputs, &mut act.expert_rows, enc)
    }

    /// Waits for the device if a miss is possible. Returns the layer of the miss, if any.
    async fn resolve_misses(&mut self) -> Result<Option<usize>, EngineError> {
        let Self { graph: Graph { enc, step, .. }, experts } = self;
        if !experts.may_have_missed() {
            return Ok(None);
        }
        enc.finish().await?;
        Ok(experts.resolve_misses(enc, step.stats))
    }

    /// Waits for a layer's experts, and computes those available while others are read.
    async fn compute_experts(&mut self, layer: usize) -> Result<(), EngineError> {
        let Self { graph: Graph { w, eps, enc, step }, experts } = self;
        let Step { rows, act, requests, predictions, cancel, stats, .. } = step;
        let router = w.layers[layer].router.as_ref();
        let per_token = router.map_or(0, |router| router.num_experts_per_tok);
        let mut pending =
            experts.request(layer, rows, &act.normed, &act.routing, enc, requests).await?;
        for distance in 1..=PREFETCH_DISTANCE_MAX {
            let later = w.layers.get(layer + distance).and_then(|later| later.routing());
            let Some((norm, router)) = later.filter(|_| pending.reads_ahead(distance)) else {
                break;
            };
            predict(enc, norm, router, *eps, act)?;
            let later = layer + distance;
            pending.read_ahead(later, rows, &act.ahead, &act.predicted, enc, predictions).await?;
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
}

#[cfg(test)]
mod tests {
    use super::Resume;

    /// Returns the layers after which the host checks, among the next `layers` layers.
    fn looks(resume: &mut Resume, layers: usize) -> Vec<usize> {
        (resume.first()..resume.first() + layers).filter(|_| resume.is_due()).collect()
    }

    #[test]
    fn nothing_is_looked_for_before_something_was_missing() {
        assert!(looks(&mut Resume::default(), 100).is_empty());
    }

    #[test]
    fn the_host_looks_twice_as_far_each_time_after_a_miss() {
        let mut resume = Resume::default();
        resume.rewind(3);
        assert_eq!((resume.first(), resume.interval), (3, 6));
        assert_eq!(looks(&mut resume, 30), [8, 20]);
        resume.rewind(4);
        assert_eq!((resume.first(), resume.interval), (4, 2));
        resume.rewind(4);
        assert_eq!(resume.interval, 1);
    }
}
