//! Steps whose experts the device finds by itself, from the routing that stays there: the host does
//! not wait for it, and counts afterwards what was used.

use std::ops::Range;
use std::sync::Arc;

use nestling_formats::{ExpertId, Level};

use crate::dual::{DualPolicy, LevelMode, LevelRouter, least_weights};
use nestling_core::backend::{Backend, DeviceRouting, ExpertUse, FeedForward, LevelWeights};
use nestling_core::batch::{LevelPolicy, StepRows};
use nestling_core::error::EngineError;
use nestling_core::runner::StepStats;

/// Most rows of such a step. With more, many share an expert, and a host that knows which has them
/// computed as one.
const ROWS_MAX: usize = 16;

/// Most uses of a layer: a device compares each with all others.
const USES_MAX: usize = 1024;

/// Bits of an expert in what a device notes of a use; the level is above them.
const EXPERT_BITS: u32 = 16;

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
    known: Option<(usize, Vec<(u32, ExpertUse)>)>,
    /// What decides the levels of each layer's uses on the device, where that is known: policies, or
    /// nothing but rows.
    by_weight: Vec<Option<Option<DualPolicy>>>, // [layers]
    /// Experts of one layer with their uses.
    used: Vec<(u32, ExpertUse)>,
    /// The uses of one of them.
    uses: Vec<ExpertUse>,
}

/// Counts the uses of an expert, and gives it.
pub(super) type Count<'a, B> =
    dyn FnMut(ExpertId, &[ExpertUse]) -> Option<Arc<FeedForward<B>>> + 'a;

/// What a layer's experts are computed from.
pub struct RoutedInputs<'a, B: Backend> {
    /// The experts of each row, with their weights.
    pub routing: &'a B::Routing, // [T, K]
    /// The rows.
    pub x: &'a B::Buffer, // [T, hidden_size]
}

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
            by_weight: vec![Some(None); tables.len()],
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

    /// Plane scores have changed.
    pub fn forget_levels(&mut self) {
        self.by_weight.fill(None);
    }

    /// Whether the device can find the experts of these rows, and by what their levels go.
    pub fn takes(
        &self,
        layer: usize,
        per_token: usize,
        rows: &StepRows,
        levels: &dyn LevelRouter,
    ) -> Option<Option<DualPolicy>> {
        let has_table = matches!(self.tables.get(layer), Some(Some(_)));
        if !has_table || rows.len() > ROWS_MAX || rows.len() * per_token > USES_MAX {
            return None;
        }
        if rows.policies.iter().all(|levels| matches!(levels, LevelPolicy::Fixed(_))) {
            return Some(None);
        }
        let Some(LevelPolicy::Dual(policy)) = rows.policies.first() else { return None };
        let same = rows.policies.iter().all(|other| *other == LevelPolicy::Dual(*policy));
        let is_left = same && policy.mode == LevelMode::Strict && levels.goes_by_weight();
        is_left.then_some(Some(*policy))
    }

    /// Has the device decide a layer's levels; false if it cannot.
    ///
    /// # Errors
    /// A failed device.
    pub fn set_levels(
        &mut self,
        layer: usize,
        experts: usize,
        policy: Option<DualPolicy>,
        levels: &dyn LevelRouter,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<bool, EngineError> {
        let (Some(Some(table)), Some(known)) =
            (self.tables.get_mut(layer), self.by_weight.get_mut(layer))
        else {
            return Ok(false);
        };
        if *known == Some(policy) {
            return Ok(true);
        }
        let of_expert =
            |policy: &DualPolicy, expert| least_weights(levels, policy, layer as u32, expert);
        let of_all =
            |policy| (0..experts as u32).map(|expert| of_expert(&policy, expert)).collect();
        let least: Option<Vec<LevelWeights>> = policy.map(of_all);
        table.set_level_weights(encoder, least.as_deref())?;
        *known = Some(policy);
        Ok(true)
    }

    /// Has the device compute a layer's experts.
    ///
    /// # Errors
    /// As [`DeviceRouting::routed_experts`].
    pub fn ask(
        &mut self,
        layer: usize,
        per_token: usize,
        rows: &StepRows,
        inputs: RoutedInputs<'_, B>,
        out: &mut B::Buffer,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        let Some(Some(table)) = self.tables.get(layer) else { return Ok(()) };
        // The level of a fixed policy is that of everything.
        table.routed_experts(encoder, &rows.dense_levels, inputs.routing, inputs.x, out)?;
        let (levels, uses) = self.asked.last().map_or((0, 0), |one| (one.levels.end, one.uses.end));
        self.levels.truncate(levels);
        self.levels.extend_from_slice(&rows.dense_levels);
        let (levels, uses) = (levels..self.levels.len(), uses..uses + rows.len() * per_token);
        self.asked.push(Asked { layer, per_token, levels, uses });
        Ok(())
    }

    /// Whether the device was asked for something that was not counted.
    pub fn may_have_missed(&self) -> bool {
        self.counted < self.asked.len()
    }

    /// Has what the device computed counted by `count`, which gives each expert, and adds it to a
    /// step's statistics. Gives the layer of which an expert was missing: it and those behind it were
    /// not computed.
    pub fn resolve_misses(
        &mut self,
        encoder: &mut B::Encoder<'_>,
        stats: &mut StepStats,
        count: &mut Count<'_, B>,
    ) -> Option<usize> {
        if !self.may_have_missed() {
            return None;
        }
        let missed = B::ExpertTable::take_readback(encoder, &mut self.ids);
        let asked = std::mem::take(&mut self.asked);
        let end = missed.unwrap_or(asked.len()).min(asked.len());
        // Default: a layer that was counted before leaves none to count.
        for one in asked.get(self.counted..end).unwrap_or_default() {
            self.count(one, stats, count);
        }
        if let Some(one) = asked.get(end) {
            self.sort(one);
            self.known = Some((one.layer, self.used.clone()));
        }
        self.asked = asked;
        self.asked.truncate(end);
        self.counted = end;
        self.known.as_ref().map(|(layer, _)| *layer)
    }

    /// What a layer uses, experts ascending, if that was found when one of them was missing.
    pub fn take_known(&mut self, layer: usize) -> Option<Vec<(u32, ExpertUse)>> {
        self.known.take().filter(|(known, _)| *known == layer).map(|(_, uses)| uses)
    }

    /// The uses of a layer, experts ascending, in `used`.
    fn sort(&mut self, asked: &Asked) {
        // Default: a device that was lost noted nothing, and says so when something is read.
        let ids = self.ids.get(asked.uses.clone()).unwrap_or_default();
        let levels = &self.levels[asked.levels.clone()];
        self.used.clear();
        let rows = (0u32..).zip(ids.chunks_exact(asked.per_token.max(1)).zip(levels));
        for (row, (ids, level)) in rows {
            self.used.extend((0u32..).zip(ids).map(|(rank, noted)| {
                let by_weight = (noted >> EXPERT_BITS).checked_sub(1);
                let by_weight = by_weight.and_then(|index| Level::ALL.get(index as usize));
                let level = *by_weight.unwrap_or(level);
                (noted & ((1 << EXPERT_BITS) - 1), ExpertUse { row, rank, level })
            }));
        }
        self.used.sort_unstable_by_key(|(id, used)| (*id, used.row, used.rank));
    }

    fn count(&mut self, asked: &Asked, stats: &mut StepStats, count: &mut Count<'_, B>) {
        self.sort(asked);
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
