//! Steps whose experts the device finds by itself, from the routing that stays there: the host does
//! not wait for it, and counts afterwards what was used.

use std::ops::Range;
use std::sync::Arc;

use nestling_formats::{ExpertId, Level};

use crate::backend::{Backend, Encoder, ExpertUse, FeedForward, Routing};
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
    /// What was asked in the step under way, layer after layer.
    asked: Vec<Asked>,
    /// Levels of the rows of all of them.
    levels: Vec<Level>,
    /// How many of them were counted.
    counted: usize,
    /// What the device found.
    ids: Vec<u32>,
    /// A layer of which an expert was missing, and what it uses.
    known: Option<(usize, Routing)>,
    /// Experts of one layer with their uses.
    used: Vec<(u32, ExpertUse)>,
    /// The uses of one of them.
    uses: Vec<ExpertUse>,
}

/// Counts the uses of an expert, and gives it.
pub(super) type Count<'a, B> =
    dyn FnMut(ExpertId, &[ExpertUse]) -> Option<Arc<FeedForward<B>>> + 'a;

/// A layer that a device was asked for.
#[derive(Clone, Debug)]
struct Asked {
    layer: usize,
    /// Experts of a row.
    per_token: usize,
    /// Its rows' levels among those of all.
    levels: Range<usize>,
    /// Its uses among those of all.
    uses: Range<usize>,
}

impl<B: Backend> Routed<B> {
    /// Nothing is left to the device.
    pub fn none() -> Self {
        Self::with(Vec::new())
    }

    /// A device finds the experts of these tables.
    pub fn with(tables: Vec<Option<B::ExpertTable>>) -> Self {
        Self {
            tables,
            asked: Vec::new(),
            levels: Vec::new(),
            counted: 0,
            ids: Vec::new(),
            known: None,
            used: Vec::new(),
            uses: Vec::new(),
        }
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
        Ok(Self::with(tables.collect::<Result<_, _>>()?))
    }

    /// What the device finds experts by.
    pub fn tables(&mut self) -> &mut [Option<B::ExpertTable>] {
        &mut self.tables
    }

    /// A step begins.
    pub fn begin_step(&mut self) {
        self.asked.clear();
        self.levels.clear();
        self.counted = 0;
        self.known = None;
    }

    /// Whether the device can find the experts of these rows.
    pub fn takes(&self, layer: usize, rows: &StepRows) -> bool {
        let is_fixed = |levels: &LevelPolicy| matches!(levels, LevelPolicy::Fixed(_));
        let has_table = matches!(self.tables.get(layer), Some(Some(_)));
        has_table && rows.len() <= ROWS_MAX && rows.policies.iter().all(is_fixed)
    }

    /// Has the device compute a layer's experts.
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
    ) -> Result<(), EngineError> {
        let Some(Some(table)) = self.tables.get(layer) else { return Ok(()) };
        // The level of a fixed policy is that of everything.
        encoder.routed_experts(table, &rows.dense_levels, inputs, out)?;
        let (levels, uses) = self.asked.last().map_or((0, 0), |one| (one.levels.end, one.uses.end));
        self.levels.truncate(levels);
        self.levels.extend_from_slice(&rows.dense_levels);
        let (levels, uses) = (levels..self.levels.len(), uses..uses + rows.len() * per_token);
        self.asked.push(Asked { layer, per_token, levels, uses });
        Ok(())
    }

    /// Whether the device was asked for something that was not counted.
    pub fn is_unsettled(&self) -> bool {
        self.counted < self.asked.len()
    }

    /// Has what the device computed counted by `count`, which gives each expert, and adds it to a
    /// step's statistics. Gives the layer of which an expert was missing: it and those behind it were
    /// not computed.
    pub fn settle(
        &mut self,
        encoder: &mut B::Encoder<'_>,
        stats: &mut StepStats,
        count: &mut Count<'_, B>,
    ) -> Option<usize> {
        if !self.is_unsettled() {
            return None;
        }
        let missed = encoder.take_missed();
        encoder.take_routed(&mut self.ids);
        let asked = std::mem::take(&mut self.asked);
        let end = missed.unwrap_or(asked.len()).min(asked.len());
        for one in asked.get(self.counted..end).unwrap_or_default() {
            self.count(one, stats, count);
        }
        self.known = asked.get(end).map(|one| {
            let expert_ids = self.ids.get(one.uses.clone()).unwrap_or_default().to_vec();
            // A fixed level asks nothing of weights.
            let expert_weights = vec![0.0; expert_ids.len()];
            let num_experts_per_tok = one.per_token;
            (one.layer, Routing { num_experts_per_tok, expert_ids, expert_weights })
        });
        self.asked = asked;
        self.asked.truncate(end);
        self.counted = end;
        self.known.as_ref().map(|(layer, _)| *layer)
    }

    /// What a layer uses, if that was found when an expert was missing.
    pub fn take_known(&mut self, layer: usize, out: &mut Routing) -> bool {
        match self.known.take() {
            Some((known, routing)) if known == layer => {
                *out = routing;
                true
            }
            _ => false,
        }
    }

    fn count(&mut self, asked: &Asked, stats: &mut StepStats, count: &mut Count<'_, B>) {
        let ids = self.ids.get(asked.uses.clone()).unwrap_or_default();
        let levels = self.levels.get(asked.levels.clone()).unwrap_or_default();
        self.used.clear();
        let rows = (0u32..).zip(ids.chunks_exact(asked.per_token.max(1)).zip(levels));
        for (row, (ids, &level)) in rows {
            let uses = (0u32..).zip(ids);
            self.used.extend(uses.map(|(rank, id)| (*id, ExpertUse { row, rank, level })));
        }
        self.used.sort_unstable_by_key(|(id, used)| (*id, used.row));
        for same in self.used.chunk_by(|a, b| a.0 == b.0) {
            let id = ExpertId { layer: asked.layer as u32, expert: same[0].0 };
            self.uses.clear();
            self.uses.extend(same.iter().map(|(_, used)| *used));
            let Some(weights) = count(id, &self.uses) else { continue };
            for level in Level::ALL {
                let uses = self.uses.iter().filter(|used| used.level == level).count() as u64;
                if uses > 0 {
                    stats.expert_uses[level.index()] += uses;
                    stats.expert_use_bytes += weights.prefix_bytes(level) * uses;
                    stats.weight_bytes += weights.read_bytes(level);
                }
            }
        }
    }
}
