//! Which experts are resident, and at which levels they are used.
//!
//! Every expert is loaded when the model is opened. [`ExpertCache::request`] is where a step would
//! wait if one were not; nothing else in the graph knows.

use std::collections::BTreeMap;

use nestling_formats::Level;

use crate::backend::{Backend, Encoder, ExpertUse, FeedForward, PinnedExpert, Routing};
use crate::batch::StepRows;
use crate::error::EngineError;
use crate::runner::StepStats;

/// The experts of a model on a device.
pub struct ExpertCache<B: Backend> {
    layers: Vec<Vec<FeedForward<B>>>, // [layers][experts], no experts in a dense layer
}

impl<B: Backend> ExpertCache<B> {
    /// A cache in which every expert is resident.
    pub fn resident(layers: Vec<Vec<FeedForward<B>>>) -> Self {
        Self { layers }
    }

    /// Decides the levels of one layer's experts and starts the reads of those that are missing.
    ///
    /// # Errors
    /// A failed device; an expert that the layer does not have.
    pub async fn request(
        &self,
        layer: usize,
        rows: &StepRows,
        routing: &B::Routing,
        encoder: &mut B::Encoder<'_>,
        stats: &mut StepStats,
    ) -> Result<PendingExperts<'_, B>, EngineError> {
        let routing = encoder.read_routing(routing).await?;
        let experts = self.layers.get(layer).map(Vec::as_slice).unwrap_or_default();
        let pinned = uses(rows, &routing).into_iter().map(|(expert, uses)| {
            let weights = experts.get(expert as usize).ok_or_else(|| {
                let expected = format!("an expert below {}", experts.len());
                EngineError::mismatch(format!("routing of layer {layer}"), expected, expert)
            })?;
            count(&uses, weights, stats);
            Ok(PinnedExpert { expert, weights, uses })
        });
        Ok(PendingExperts { ready: pinned.collect::<Result<_, EngineError>>()? })
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
}

impl<'a, B: Backend> PendingExperts<'a, B> {
    /// Waits for experts that have not been given yet; none once all have been. They stay resident
    /// while the result lives.
    ///
    /// # Errors
    /// A read that failed.
    pub async fn next(&mut self) -> Result<Option<Vec<PinnedExpert<'a, B>>>, EngineError> {
        let ready = std::mem::take(&mut self.ready);
        Ok(if ready.is_empty() { None } else { Some(ready) })
    }
}

/// The rows of every expert that is used, with their levels: a function of the routing and of each
/// row's own policy.
fn uses(rows: &StepRows, routing: &Routing) -> BTreeMap<u32, Vec<ExpertUse>> {
    let mut uses: BTreeMap<u32, Vec<ExpertUse>> = BTreeMap::new();
    let chosen = routing.num_experts_per_tok.max(1);
    let ids = routing.expert_ids.chunks_exact(chosen);
    let weights = routing.expert_weights.chunks_exact(chosen);
    for (row, ((ids, weights), policy)) in (0..).zip(ids.zip(weights).zip(&rows.policies)) {
        for (rank, (&expert, &weight)) in (0..).zip(ids.iter().zip(weights)) {
            let level = policy.expert(weight);
            uses.entry(expert).or_default().push(ExpertUse { row, rank, level });
        }
    }
    uses
}
