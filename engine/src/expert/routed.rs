//! Steps whose experts the device finds by itself, from the routing that stays there: the host does
//! not wait for it, and counts afterwards what was used.

use std::sync::Arc;

use nestling_formats::Level;

use crate::backend::{Backend, Encoder, FeedForward};
use crate::batch::{LevelPolicy, StepRows};
use crate::error::EngineError;
use crate::runner::StepStats;

/// Most rows of such a step. With more, several rows share an expert, and a host that knows which
/// has them computed together.
const ROWS_MAX: usize = 4;

/// Experts by layer.
type Layers<B> = [Vec<Arc<FeedForward<B>>>];

/// What a device needs for finding experts, and what it was asked.
pub(super) struct Routed<B: Backend> {
    /// `[layers]`; empty where the host has to know the routing.
    tables: Vec<Option<B::ExpertTable>>,
    /// Layers of the step under way, each with the experts of a row.
    asked: Vec<(usize, usize)>,
    /// Levels of the rows of each of them, and where these end.
    levels: Vec<Level>,
    ends: Vec<usize>,
    /// What the device found.
    ids: Vec<u32>,
    /// Experts of one layer with the levels of their uses.
    used: Vec<(u32, Level)>,
}

impl<B: Backend> Routed<B> {
    /// Nothing is left to the device.
    pub fn none() -> Self {
        let (asked, levels, ends) = (Vec::new(), Vec::new(), Vec::new());
        Self { tables: Vec::new(), asked, levels, ends, ids: Vec::new(), used: Vec::new() }
    }

    /// Leaves all that it can to the device.
    ///
    /// # Errors
    /// A device whose memory is full.
    pub fn of(layers: &Layers<B>, backend: &mut B) -> Result<Self, EngineError> {
        let tables = layers.iter().map(|experts| match experts.is_empty() {
            true => Ok(None),
            false => backend.expert_table(experts),
        });
        Ok(Self { tables: tables.collect::<Result<_, _>>()?, ..Self::none() })
    }

    /// A step begins.
    pub fn begin_step(&mut self) {
        self.asked.clear();
        self.levels.clear();
        self.ends.clear();
    }

    /// Has the device compute a layer's experts; false where it cannot.
    ///
    /// # Errors
    /// As [`Encoder::routed_experts`].
    pub fn ask(
        &mut self,
        (layer, per_token): (usize, usize),
        rows: &StepRows,
        inputs: (&B::Routing, &B::Buffer),
        out: &mut B::Buffer,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<bool, EngineError> {
        let is_fixed = |levels: &LevelPolicy| matches!(levels, LevelPolicy::Fixed(_));
        let Some(Some(table)) = self.tables.get(layer) else { return Ok(false) };
        if rows.len() > ROWS_MAX || !rows.policies.iter().all(is_fixed) {
            return Ok(false);
        }
        // The level of a fixed policy is that of everything.
        encoder.routed_experts(table, &rows.dense_levels, inputs, out)?;
        self.asked.push((layer, per_token));
        self.levels.extend_from_slice(&rows.dense_levels);
        self.ends.push(self.levels.len());
        Ok(true)
    }

    /// Adds what the device computed to a step's statistics.
    pub fn count(
        &mut self,
        layers: &Layers<B>,
        encoder: &mut B::Encoder<'_>,
        stats: &mut StepStats,
    ) {
        if self.asked.is_empty() {
            return;
        }
        encoder.take_routed(&mut self.ids);
        let (mut ids, mut start) = (self.ids.as_slice(), 0);
        for ((layer, per_token), end) in self.asked.iter().zip(&self.ends) {
            let levels = self.levels.get(start..*end).unwrap_or_default();
            let (of_layer, rest) = ids.split_at((levels.len() * per_token).min(ids.len()));
            (ids, start) = (rest, *end);
            self.used.clear();
            for (ids, level) in of_layer.chunks_exact((*per_token).max(1)).zip(levels) {
                self.used.extend(ids.iter().map(|id| (*id, *level)));
            }
            self.used.sort_unstable();
            let experts = layers.get(*layer).map(Vec::as_slice).unwrap_or_default();
            for same in self.used.chunk_by(|a, b| a == b) {
                let ((expert, level), uses) = (same[0], same.len() as u64);
                let Some(weights) = experts.get(expert as usize) else { continue };
                stats.expert_uses[level.index()] += uses;
                stats.expert_use_bytes += weights.prefix_bytes(level) * uses;
                stats.weight_bytes += weights.read_bytes(level);
            }
        }
    }
}
