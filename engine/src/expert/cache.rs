//! Which experts are resident, and at which levels they are used.
//!
//! Every expert is loaded when the model is opened. [`ExpertCache::request`] is where a step would
//! wait if one were not; nothing else in the graph knows.

use std::sync::Arc;

use nestling_formats::Level;

use crate::backend::{Backend, Encoder, ExpertUse, FeedForward, PinnedExpert, Routing};
use crate::batch::StepRows;
use crate::dual::{ExpertChoice, LevelRouter, ThresholdRule};
use crate::error::EngineError;
use crate::recycle::recycle;
use crate::runner::StepStats;

/// The experts of a model on a device.
pub struct ExpertCache<B: Backend> {
    layers: Vec<Vec<FeedForward<B>>>, // [layers][experts], no experts in a dense layer
    /// Decides levels under dual routing.
    levels: Arc<dyn LevelRouter>,
}

/// Memory that requests reuse.
pub struct RequestScratch<B: Backend> {
    routing: Routing,
    uses: Vec<ExpertUse>,
    /// The expert of each use.
    experts: Vec<(u32, ExpertUse)>,
    ready: Vec<PinnedExpert<'static, B>>,
}

impl<B: Backend> Default for RequestScratch<B> {
    fn default() -> Self {
        Self {
            routing: Routing::default(),
            uses: Vec::new(),
            experts: Vec::new(),
            ready: Vec::new(),
        }
    }
}

impl<B: Backend> ExpertCache<B> {
    /// A cache in which every expert is resident.
    pub fn resident(layers: Vec<Vec<FeedForward<B>>>) -> Self {
        Self { layers, levels: Arc::new(ThresholdRule::default()) }
    }

    /// Levels under dual routing are decided by this from now on.
    pub fn set_level_router(&mut self, levels: Arc<dyn LevelRouter>) {
        self.levels = levels;
    }

    /// Decides the levels of one layer's experts and starts the reads of those that are missing.
    ///
    /// # Errors
    /// A failed device; an expert that the layer does not have.
    pub async fn request<'a>(
        &'a self,
        layer: usize,
        rows: &StepRows,
        routing: &B::Routing,
        encoder: &mut B::Encoder<'_>,
        (stats, scratch): (&mut StepStats, &'a mut RequestScratch<B>),
    ) -> Result<PendingExperts<'a, B>, EngineError> {
        encoder.read_routing_into(routing, &mut scratch.routing).await?;
        scratch.sort(layer, rows, &*self.levels);
        let RequestScratch { uses, experts: sorted, ready: spare, .. } = scratch;
        let experts = self.layers.get(layer).map(Vec::as_slice).unwrap_or_default();
        let mut ready: Vec<PinnedExpert<'a, B>> = recycle(std::mem::take(spare));
        let mut rest = uses.as_slice();
        for same in sorted.chunk_by(|(a, _), (b, _)| a == b) {
            let expert = same[0].0;
            let (uses, others) = rest.split_at(same.len());
            rest = others;
            let weights = experts.get(expert as usize).ok_or_else(|| {
                let expected = format!("an expert below {}", experts.len());
                EngineError::mismatch(format!("routing of layer {layer}"), expected, expert)
            })?;
            count(uses, weights, stats);
            ready.push(PinnedExpert { expert, weights, uses });
        }
        Ok(PendingExperts { ready, next: 0, spare })
    }
}

/// Adds one expert's rows, and the bytes that they read, to a step's statistics.
fn count<B: Backend>(uses: &[ExpertUse], weights: &FeedForward<B>, stats: &mut StepStats) {
    let mut counted = [false; Level::ALL.len()];
    for used in uses {
        let index = used.level.index();
        stats.expert_uses[index] += 1;
        if !std::mem::replace(&mut counted[index], true) {
            stats.weight_bytes += weights.read_bytes(used.level);
        }
    }
}

/// The experts of one layer that a step asked for.
pub struct PendingExperts<'a, B: Backend> {
    ready: Vec<PinnedExpert<'a, B>>,
    /// The first that has not been given.
    next: usize,
    /// Gets the memory of `ready` back.
    spare: &'a mut Vec<PinnedExpert<'static, B>>,
}

impl<'a, B: Backend> PendingExperts<'a, B> {
    /// Waits for experts that have not been given yet; none once all have been. They stay resident
    /// while this lives.
    ///
    /// # Errors
    /// A read that failed.
    pub async fn next(&mut self) -> Result<Option<&[PinnedExpert<'a, B>]>, EngineError> {
        let given = self.ready.get(self.next..).unwrap_or_default();
        self.next = self.ready.len();
        Ok(if given.is_empty() { None } else { Some(given) })
    }
}

impl<B: Backend> Drop for PendingExperts<'_, B> {
    fn drop(&mut self) {
        *self.spare = recycle(std::mem::take(&mut self.ready));
    }
}

impl<B: Backend> RequestScratch<B> {
    /// The rows of every expert that is used, with their levels, experts ascending: a function of
    /// the routing and of each row's own policy.
    fn sort(&mut self, layer: usize, rows: &StepRows, levels: &dyn LevelRouter) {
        let Self { routing, uses, experts, .. } = self;
        experts.clear();
        let layer = u32::try_from(layer).unwrap_or(u32::MAX);
        let chosen = routing.num_experts_per_tok.max(1);
        let ids = routing.expert_ids.chunks_exact(chosen);
        let weights = routing.expert_weights.chunks_exact(chosen);
        for (row, ((ids, weights), policy)) in (0..).zip(ids.zip(weights).zip(&rows.policies)) {
            for (rank, (&expert, &weight)) in (0..).zip(ids.iter().zip(weights)) {
                let level = policy.expert(ExpertChoice { layer, expert, weight }, levels);
                experts.push((expert, ExpertUse { row, rank, level }));
            }
        }
        experts.sort_unstable_by_key(|(expert, used)| (*expert, used.row, used.rank));
        uses.clear();
        uses.extend(experts.iter().map(|(_, used)| *used));
    }
}
