//! Steps whose experts the device looks up from a routing that stays in device memory. The host does not wait
//! for the routing and counts the uses afterwards.

use std::ops::Range;
use std::sync::Arc;

use nestling_formats::{ExpertId, Level};

use nestling_core::backend::{Backend, DeviceRouting, ExpertUse, FeedForward, LevelWeights};
use nestling_core::batch::{LevelPolicy, StepRows};
use nestling_core::error::EngineError;
use nestling_core::placement::Placement;
use nestling_core::runner::StepStats;
use nestling_levels::dual::{DualPolicy, LevelMode, LevelRouter, least_weights};

/// Maximum number of rows of such a step. With more rows, many share an expert, and the host can compute
/// shared experts together if it reads the routing.
const ROWS_MAX: usize = 16;

/// Maximum number of uses of a layer, because a device compares each use with all others.
const USES_MAX: usize = 1024;

/// Number of bits of the expert index in a use noted by a device. The level is stored above them.
const EXPERT_BITS: u32 = 16;

/// Resident experts of a layer. `None` for those that another rank holds.
pub(super) type ResidentLayer<B> = Vec<Option<Arc<FeedForward<B>>>>; // [experts]

type Layers<B> = [ResidentLayer<B>]; // [layers]

/// Adds loaded replicas, with their layers and numbers, and drops experts that a rank does not hold any more.
pub(super) fn exchange<B: Backend>(
    layers: &mut Layers<B>,
    placement: &Placement,
    loaded: Vec<(u32, u32, FeedForward<B>)>,
) {
    for (layer, expert, weights) in loaded {
        let layer = layers.get_mut(layer as usize);
        if let Some(slot) = layer.and_then(|layer| layer.get_mut(expert as usize)) {
            *slot = Some(Arc::new(weights));
        }
    }
    for (layer, experts) in (0..).zip(layers) {
        let slots = (0..).zip(experts).filter(|(expert, _)| !placement.holds(layer, *expert));
        slots.for_each(|(_, slot)| *slot = None);
    }
}

/// Expert tables of a device, and the layers it was given in this step.
pub(super) struct RoutedLayers<B: Backend> {
    /// Expert tables, `[layers]`; empty if the host must read the routing.
    tables: Vec<Option<B::ExpertTable>>,
    /// Layers given to the device in the current step, in order.
    asked: Vec<PendingLayer>,
    /// Row levels of all layers in `asked`.
    levels: Vec<Level>,
    /// Number of layers in `asked` that are already counted.
    counted: usize,
    /// Uses that the device noted.
    ids: Vec<u32>,
    /// Layer with a missing expert, and its uses.
    known: Option<(usize, Vec<(u32, ExpertUse)>)>,
    /// Source of each layer's levels on the device: `None` if not set, `Some(None)` for the rows' levels,
    /// else a policy.
    by_weight: Vec<Option<Option<DualPolicy>>>, // [layers]
    used: Vec<(u32, ExpertUse)>,
    uses: Vec<ExpertUse>,
}

/// Counts the uses of an expert and returns the expert.
pub(super) type Count<'a, B> =
    dyn FnMut(ExpertId, &[ExpertUse]) -> Option<Arc<FeedForward<B>>> + 'a;

/// Inputs of a layer's experts.
pub struct RoutedInputs<'a, B: Backend> {
    /// Experts of each row, with their weights.
    pub routing: &'a B::Routing, // [T, K]
    /// Input rows.
    pub x: &'a B::Buffer, // [T, hidden_size]
}

/// A layer that was given to the device.
#[derive(Clone, Debug)]
struct PendingLayer {
    layer: usize,
    per_token: usize,
    /// Range of its rows' levels in `RoutedLayers::levels`.
    levels: Range<usize>,
    /// Range of its uses in `RoutedLayers::ids`.
    uses: Range<usize>,
}

impl<B: Backend> RoutedLayers<B> {
    /// Creates an instance without tables: the host handles all layers.
    pub fn none() -> Self {
        Self::with(Vec::new())
    }

    /// Creates an instance for a device with these tables.
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

    /// Creates tables for all layers that the device supports.
    ///
    /// # Errors
    /// Returns an error if device memory is exhausted.
    pub fn of(layers: &Layers<B>, backend: &mut B) -> Result<Self, EngineError> {
        let tables = layers.iter().map(|experts| {
            // If another rank holds some, or rows of them, the host looks them up.
            let all: Option<Vec<_>> = experts.iter().cloned().collect();
            let is_whole = |expert: &Arc<FeedForward<B>>| !expert.is_divided();
            let all = all.filter(|experts| !experts.is_empty() && experts.iter().all(is_whole));
            all.map_or(Ok(None), |experts| backend.expert_table(&experts))
        });
        Ok(Self::with(tables.collect::<Result<_, _>>()?))
    }

    pub fn tables(&mut self) -> &mut [Option<B::ExpertTable>] {
        &mut self.tables
    }

    pub fn begin_step(&mut self) {
        self.asked.clear();
        self.levels.clear();
        self.counted = 0;
        self.known = None;
    }

    /// Invalidates the levels set on the device, after the plane scores changed.
    pub fn forget_levels(&mut self) {
        self.by_weight.fill(None);
    }

    /// Returns whether the device can look up the experts of these rows. `None` if it cannot; `Some(None)`
    /// for levels given by the rows; otherwise the policy that chooses levels.
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

    /// Sets up the device to choose a layer's levels. Returns false if it cannot.
    ///
    /// # Errors
    /// Returns an error if the device fails.
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

    /// Submits a layer's experts to the device.
    ///
    /// # Errors
    /// Same errors as [`DeviceRouting::routed_experts`].
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
        // Experts have the same level as dense matrices under a fixed policy.
        table.routed_experts(encoder, &rows.dense_levels, inputs.routing, inputs.x, out)?;
        let (levels, uses) = self.asked.last().map_or((0, 0), |one| (one.levels.end, one.uses.end));
        self.levels.truncate(levels);
        self.levels.extend_from_slice(&rows.dense_levels);
        let (levels, uses) = (levels..self.levels.len(), uses..uses + rows.len() * per_token);
        self.asked.push(PendingLayer { layer, per_token, levels, uses });
        Ok(())
    }

    /// Returns whether layers were submitted that are not counted yet.
    pub fn may_have_missed(&self) -> bool {
        self.counted < self.asked.len()
    }

    /// Counts the layers that the device computed and adds them to a step's statistics. `count` looks up each
    /// expert. Returns the layer in which an expert was missing; that layer and later ones were not computed.
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
        // Default: nothing is left to count if the missing layer was counted before.
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

    /// Returns a layer's uses, sorted by expert, if they are known from a miss.
    pub fn take_known(&mut self, layer: usize) -> Option<Vec<(u32, ExpertUse)>> {
        self.known.take().filter(|(known, _)| *known == layer).map(|(_, uses)| uses)
    }

    /// Sorts a layer's uses by expert into `used`.
    fn sort(&mut self, asked: &PendingLayer) {
        // Default: a lost device noted nothing, and the next read returns the error.
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

    fn count(&mut self, asked: &PendingLayer, stats: &mut StepStats, count: &mut Count<'_, B>) {
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
