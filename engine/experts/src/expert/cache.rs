//! The experts of a model: resident experts and the levels at which they are used.
//!
//! All experts are loaded when the model is opened, or they are streamed within a budget. A step waits for
//! misses only in [`ExpertCache::request`] and [`PendingExperts::next`]; the rest of the graph does not
//! depend on streaming.

use std::ops::Range;
use std::sync::Arc;

use nestling_formats::Level;

#[cfg(not(target_family = "wasm"))]
use super::mapped_checks::MappedChecks;
use super::routed::{ResidentLayer, RoutedInputs, RoutedLayers, exchange};
use super::streamed::{LatePlanes, StreamOptions, StreamedExperts};
use super::{ExpertMemory, ExpertSource, StreamStats};
use crate::record::{ActivityKind, Recorder};
use crate::residency::Placement;
use nestling_core::backend::{Backend, Encoder, ExpertUse, FeedForward, PinnedExpert, Routing};
use nestling_core::batch::{LevelPolicy, StepRows};
use nestling_core::error::EngineError;
use nestling_core::group::RankShare;
use nestling_core::recycle::recycle;
use nestling_core::replicas::Replicas;
use nestling_core::routing_recorder::RoutingRecorder;
use nestling_core::runner::StepStats;
use nestling_core::weights::ActivationMode;
use nestling_levels::dual::{LevelRouter, PlaneScores, RoutedToken, ThresholdRule};

/// The experts of a model on a device.
pub struct ExpertCache<B: Backend> {
    experts: Experts<B>,
    /// Device-side routing and its pending counts.
    routed: RoutedLayers<B>,
    levels: Arc<dyn LevelRouter>,
    recorder: Arc<RoutingRecorder>,
    /// Checksums of experts used directly from a mapped file.
    #[cfg(not(target_family = "wasm"))]
    checks: Option<MappedChecks>,
    timer: StepTimer,
    /// Ranks of the experts, of which one holds this cache.
    placement: Placement,
}

/// Reports activities of steps to a recorder. Without one, nothing is measured.
#[derive(Debug, Default)]
struct StepTimer {
    recorder: Option<Arc<Recorder>>,
    since_ns: u64,
}

impl StepTimer {
    fn begin(&mut self) {
        self.since_ns = self.recorder.as_ref().map_or(0, |recorder| recorder.now_ns());
    }

    /// Records an activity since the last call.
    fn ended(&mut self, what: ActivityKind, layer: u32) {
        if let Some(recorder) = &self.recorder {
            self.since_ns = recorder.add_since(what, layer, self.since_ns);
        }
    }
}

enum Experts<B: Backend> {
    /// Resident experts; empty for dense layers.
    Resident(Vec<ResidentLayer<B>>), // [layers]
    Streamed(Box<StreamedExperts<B>>),
}

/// Buffers that requests reuse.
pub struct RequestScratch<B: Backend> {
    routing: Routing,
    /// Router inputs, if the level router reads them.
    hidden: Vec<f32>, // [T, hidden_size]
    scores: Vec<PlaneScores>, // [K]
    uses: Vec<ExpertUse>,
    /// Expert of each use.
    experts: Vec<(u32, ExpertUse)>,
    ready: Vec<PinnedExpert<'static, B>>,
}

impl<B: Backend> Default for RequestScratch<B> {
    fn default() -> Self {
        Self {
            routing: Routing::default(),
            hidden: Vec::new(),
            scores: Vec::new(),
            uses: Vec::new(),
            experts: Vec::new(),
            ready: Vec::new(),
        }
    }
}

impl<B: Backend> ExpertCache<B> {
    /// Creates a cache in which all experts of a rank are resident; other experts are `None`.
    pub fn resident(layers: Vec<Vec<Option<FeedForward<B>>>>, placement: Placement) -> Self {
        let recorder = RoutingRecorder::new(layers.iter().map(Vec::len));
        let in_arcs = |layer: Vec<Option<FeedForward<B>>>| {
            layer.into_iter().map(|expert| expert.map(Arc::new)).collect()
        };
        Self::new(Experts::Resident(layers.into_iter().map(in_arcs).collect()), recorder, placement)
    }

    /// Creates a cache that streams a rank's experts of a store within a budget.
    ///
    /// # Errors
    /// Returns an error if the source is not a store, or a reader thread cannot be started. Also returns an
    /// error if the budget does not fit one token's experts of one layer.
    pub fn streamed(
        source: Arc<dyn ExpertSource>,
        activations: ActivationMode,
        options: &StreamOptions,
        share: RankShare,
    ) -> Result<Self, EngineError> {
        let placement = source.placement(share);
        let mut streamed = StreamedExperts::open(source, activations, options)?;
        streamed.set_placement(placement.clone());
        let recorder = RoutingRecorder::new(streamed.experts_of_layers());
        Ok(Self::new(Experts::Streamed(Box::new(streamed)), recorder, placement))
    }

    fn new(experts: Experts<B>, recorder: RoutingRecorder, placement: Placement) -> Self {
        Self {
            experts,
            routed: RoutedLayers::none(),
            levels: Arc::new(ThresholdRule::default()),
            recorder: Arc::new(recorder),
            #[cfg(not(target_family = "wasm"))]
            checks: None,
            timer: StepTimer::default(),
            placement,
        }
    }

    /// Enables checksum verification of a mapped store's experts. They are verified before first use, or
    /// immediately if they were copied: by the device, or since this rank holds slices of them.
    ///
    /// # Errors
    /// Returns an error if a plane is damaged.
    #[cfg(not(target_family = "wasm"))]
    pub fn check_mapped(&mut self, source: Arc<dyn ExpertSource>) -> Result<(), EngineError> {
        let (Experts::Resident(layers), Some(source)) = (&self.experts, source.store_source())
        else {
            return Ok(());
        };
        let checks = MappedChecks::new(source, layers.iter().map(Vec::len));
        let is_copied = layers.iter().flatten().flatten().any(|expert| expert.is_divided());
        if B::WEIGHTS_IN_PLACE && !is_copied {
            self.checks = checks;
            return Ok(());
        }
        checks.map_or(Ok(()), |checks| checks.check_all())
    }

    /// Enables routing on the device where possible. Streamed experts move to slots in device memory if the
    /// device has slots.
    ///
    /// # Errors
    /// Returns an error if device memory is exhausted.
    pub fn enable_device_slots(&mut self, backend: &mut B) -> Result<(), EngineError> {
        self.routed = match &mut self.experts {
            // A device that looks up experts does not divide the rows of replicas.
            Experts::Resident(_) if self.placement.replicas_max() > 0 => RoutedLayers::none(),
            Experts::Resident(layers) => RoutedLayers::of(layers, backend)?,
            Experts::Streamed(streamed) => {
                RoutedLayers::with(streamed.enable_device_slots(backend)?)
            }
        };
        Ok(())
    }

    /// Computes a layer's experts with routing that stays on the device. Returns false if the step must use
    /// [`ExpertCache::request`] instead. `per_token` is the number of experts per row.
    ///
    /// Misses are reported later, by [`ExpertCache::resolve_misses`].
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn try_device_routing(
        &mut self,
        layer: usize,
        per_token: usize,
        rows: &StepRows,
        inputs: RoutedInputs<'_, B>,
        out: &mut B::Buffer, // [T * K, hidden_size]
        encoder: &mut B::Encoder<'_>,
    ) -> Result<bool, EngineError> {
        if self.recorder.is_on() || self.timer.recorder.is_some() {
            return Ok(false);
        }
        let Some(policy) = self.routed.takes(layer, per_token, rows, &*self.levels) else {
            return Ok(false);
        };
        let experts = match &self.experts {
            Experts::Resident(layers) => layers.get(layer).map_or(0, Vec::len),
            Experts::Streamed(streamed) => streamed.experts_of(layer),
        };
        if !self.routed.set_levels(layer, experts, policy, &*self.levels, encoder)? {
            return Ok(false);
        }
        if let Experts::Streamed(streamed) = &mut self.experts {
            streamed.publish(self.routed.tables(), encoder)?;
        }
        self.routed.ask(layer, per_token, rows, inputs, out, encoder)?;
        Ok(true)
    }

    /// Returns whether the device computed experts since the last [`ExpertCache::resolve_misses`] that may
    /// have been missing.
    pub fn may_have_missed(&self) -> bool {
        matches!(self.experts, Experts::Streamed(_)) && self.routed.may_have_missed()
    }

    /// Accounts for layers routed on the device, after a readback or at the end of the step. Returns the
    /// first layer with a missing expert, or `None` if all layers were complete. The uses of the returned
    /// layer are kept for the next [`ExpertCache::request`].
    pub fn resolve_misses(
        &mut self,
        encoder: &mut B::Encoder<'_>,
        stats: &mut StepStats,
    ) -> Option<usize> {
        let Self { experts, routed, .. } = self;
        routed.resolve_misses(encoder, stats, &mut |id, uses| match &mut *experts {
            // Default: an expert that cannot be counted is missing, and its request returns the error.
            Experts::Streamed(streamed) => streamed.count_found(id, uses).ok().flatten(),
            Experts::Resident(layers) => {
                let of_layer = layers.get(id.layer as usize)?;
                of_layer.get(id.expert as usize)?.as_ref().map(Arc::clone)
            }
        })
    }

    /// Returns the placement of the experts.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Exchanges the replicas of resident experts. `loaded` holds the new ones with their layers and numbers.
    pub fn set_replicas(&mut self, replicas: Replicas, loaded: Vec<(u32, u32, FeedForward<B>)>) {
        self.placement.set_replicas(replicas);
        if let Experts::Resident(layers) = &mut self.experts {
            exchange(layers, &self.placement, loaded);
        }
    }

    /// Returns the level router of dual routing.
    pub fn level_router(&self) -> Arc<dyn LevelRouter> {
        Arc::clone(&self.levels)
    }

    /// Sets the level router of dual routing.
    pub fn set_level_router(&mut self, levels: Arc<dyn LevelRouter>) {
        self.levels = levels;
        self.routed.forget_levels();
    }

    /// Sets the recorder of steps, or removes it.
    pub fn set_recorder(&mut self, recorder: Option<Arc<Recorder>>) {
        if let Experts::Streamed(streamed) = &mut self.experts {
            streamed.set_recorder(recorder.clone());
        }
        self.timer.recorder = recorder;
    }

    /// Returns the memory control of streamed experts, or `None` if all are resident.
    pub fn memory(&self) -> Option<&Arc<ExpertMemory>> {
        match &self.experts {
            Experts::Resident(_) => None,
            Experts::Streamed(streamed) => Some(streamed.memory()),
        }
    }

    /// Applies the limits requested through [`ExpertMemory`]. Each request does so too.
    ///
    /// # Errors
    /// Returns an error if the budget does not fit one token's experts of one layer; the old budget then
    /// stays.
    pub fn change_memory(&mut self, encoder: &mut B::Encoder<'_>) -> Result<(), EngineError> {
        match &mut self.experts {
            Experts::Resident(_) => Ok(()),
            Experts::Streamed(streamed) => streamed.change_memory(encoder),
        }
    }

    /// Returns the recorder of routing.
    pub fn recorder(&self) -> &Arc<RoutingRecorder> {
        &self.recorder
    }

    /// Starts a step.
    ///
    /// # Errors
    /// Returns an error if a mapped file was modified or truncated.
    pub fn begin_step(&mut self) -> Result<(), EngineError> {
        #[cfg(not(target_family = "wasm"))]
        if let Some(checks) = &self.checks {
            checks.check_unchanged()?;
        }
        self.recorder.begin_step();
        self.routed.begin_step();
        self.timer.begin();
        if let Experts::Streamed(streamed) = &mut self.experts {
            streamed.begin_step();
        }
        Ok(())
    }

    /// Returns the streaming statistics since the last call.
    pub fn take_stats(&mut self) -> StreamStats {
        match &mut self.experts {
            Experts::Resident(_) => StreamStats::default(),
            Experts::Streamed(streamed) => streamed.take_stats(),
        }
    }

    /// Assigns a level to each routed expert of a layer and starts reads for the misses. `hidden` holds the
    /// router's input, `[T, D]`.
    ///
    /// # Errors
    /// Returns an error if the device fails or the layer lacks a routed expert.
    pub async fn request<'a>(
        &'a mut self,
        layer: usize,
        rows: &StepRows,
        hidden: &B::Buffer,
        routing: &B::Routing,
        encoder: &mut B::Encoder<'_>,
        scratch: &'a mut RequestScratch<B>,
    ) -> Result<PendingExperts<'a, B>, EngineError> {
        if let Some(known) = self.routed.take_known(layer) {
            scratch.experts = known;
        } else {
            encoder.read_routing_into(routing, &mut scratch.routing).await?;
            if self.recorder.keeps_hidden() || reads_hidden(&*self.levels, rows) {
                encoder.read_into(hidden, &mut scratch.hidden).await?;
            }
            scratch.sort(layer, rows, &*self.levels);
            let RequestScratch { routing, hidden, experts, .. } = &*scratch;
            self.recorder.layer(layer, routing, hidden, experts);
        }
        scratch.take_uses(layer, &self.placement);
        let RequestScratch { uses, experts: sorted, ready: spare, .. } = scratch;
        let ready = recycle(std::mem::take(spare));
        let layer = layer as u32;
        self.timer.ended(ActivityKind::Dense, layer);
        let levels = Arc::clone(&self.levels);
        let source = PendingSource::Resident;
        let (timer, placement) = (&mut self.timer, &self.placement);
        let mut pending =
            PendingExperts { ready, source, layer, uses, levels, spare, timer, placement };
        match &mut self.experts {
            Experts::Resident(layers) => {
                // Default: a layer that does not exist has no experts, so each of its uses is refused below.
                let experts = layers.get(layer as usize).map(Vec::as_slice).unwrap_or_default();
                for (expert, range) in ranges(sorted) {
                    let held = experts.get(expert as usize).and_then(Option::as_ref);
                    let weights = held.ok_or_else(|| {
                        let expected = format!("an expert below {} of this rank", experts.len());
                        EngineError::mismatch(format!("routing of layer {layer}"), expected, expert)
                    })?;
                    let (weights, uses) = (Arc::clone(weights), &uses[range]);
                    #[cfg(not(target_family = "wasm"))]
                    if let Some(checks) = &self.checks
                        && let Some(most) = uses.iter().map(|used| used.level).max()
                    {
                        checks.check(layer, expert, most)?;
                    }
                    pending.ready.push(PinnedExpert { expert, weights, uses });
                }
            }
            Experts::Streamed(streamed) => {
                let late = LatePlanes::of(&rows.policies);
                let begun = streamed.begin(layer, ranges(sorted), uses, late, encoder);
                // Dropping the result ends the request from here on.
                pending.source = PendingSource::Streamed(streamed);
                begun?;
            }
        }
        Ok(pending)
    }
}

/// Returns whether any row's levels depend on the router's input.
fn reads_hidden(levels: &dyn LevelRouter, rows: &StepRows) -> bool {
    let is_dual = |levels: &LevelPolicy| matches!(levels, LevelPolicy::Dual(_));
    levels.reads_hidden() && rows.policies.iter().any(is_dual)
}

/// Returns each expert with the range of its uses.
fn ranges(sorted: &[(u32, ExpertUse)]) -> impl Iterator<Item = (u32, Range<usize>)> + '_ {
    let mut start = 0;
    sorted.chunk_by(|(a, _), (b, _)| a == b).map(move |same| {
        let range = start..start + same.len();
        start = range.end;
        (same[0].0, range)
    })
}

/// Adds one expert's rows and the bytes they read to a step's statistics. `cut` is the highest level that the
/// expert's planes provide. `is_counted` is false if another rank counts the same rows.
fn count<B: Backend>(
    weights: &FeedForward<B>,
    uses: &[ExpertUse],
    cut: Option<Level>,
    is_counted: bool,
    stats: &mut StepStats,
) {
    let mut rows = [0; Level::ALL.len()];
    let most = cut.unwrap_or(Level::L8);
    uses.iter().for_each(|used| rows[used.level.min(most).index()] += 1);
    for (level, rows) in Level::ALL.into_iter().zip(rows).filter(|(_, rows)| *rows > 0) {
        stats.expert_uses[level.index()] += if is_counted { rows } else { 0 };
        stats.expert_use_bytes += weights.prefix_bytes(level) * rows;
        stats.weight_bytes += weights.read_bytes(level);
    }
}

/// The experts of one layer that a step requested.
pub struct PendingExperts<'a, B: Backend> {
    ready: Vec<PinnedExpert<'a, B>>,
    source: PendingSource<'a, B>,
    layer: u32,
    uses: &'a [ExpertUse],
    levels: Arc<dyn LevelRouter>,
    /// Allocation of `ready`, returned for reuse.
    spare: &'a mut Vec<PinnedExpert<'static, B>>,
    timer: &'a mut StepTimer,
    placement: &'a Placement,
}

/// Source of the remaining experts.
enum PendingSource<'a, B: Backend> {
    /// All experts are in `ready`.
    Resident,
    /// All experts were resident and have been returned.
    Given,
    Streamed(&'a mut StreamedExperts<B>),
}

impl<'a, B: Backend> PendingExperts<'a, B> {
    /// Waits for the next experts and returns them, or `None` once all were returned. The experts of the
    /// previous call must already be computed. Returns an empty slice if the CPU has experts to compute
    /// ([`PendingExperts::compute_on_host`]) before the next wait.
    ///
    /// # Errors
    /// Returns an error if a read fails.
    pub async fn next(
        &mut self,
        encoder: &mut B::Encoder<'_>,
        stats: &mut StepStats,
    ) -> Result<Option<&[PinnedExpert<'a, B>]>, EngineError> {
        let given = self.ready.len() as u32;
        if given > 0 && !matches!(self.source, PendingSource::Resident) {
            self.timer.ended(ActivityKind::Experts { count: given }, self.layer);
        }
        match &mut self.source {
            PendingSource::Resident => self.source = PendingSource::Given,
            PendingSource::Given => return Ok(None),
            PendingSource::Streamed(streamed) => {
                self.ready.clear();
                streamed.next(self.uses, encoder, &mut self.ready).await?;
                if !self.ready.is_empty() {
                    self.timer.ended(ActivityKind::Wait, self.layer);
                }
            }
        }
        for pinned in &self.ready {
            let cut = match &self.source {
                PendingSource::Streamed(streamed) => streamed.cut(pinned.expert),
                _ => None,
            };
            let is_counted = self.placement.counts(self.layer);
            count(&pinned.weights, pinned.uses, cut, is_counted, stats);
        }
        Ok(if self.ready.is_empty() && !self.has_host_work() { None } else { Some(&self.ready) })
    }

    fn has_host_work(&self) -> bool {
        matches!(&self.source, PendingSource::Streamed(streamed) if streamed.has_host_work())
    }

    /// Copies the inputs of experts that the CPU computes to the host, if there are any.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub async fn read_host_inputs(
        &mut self,
        inputs: &B::Buffer, // [T, hidden_size]
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        match &mut self.source {
            PendingSource::Streamed(streamed) => streamed.read_host_inputs(inputs, encoder).await,
            PendingSource::Resident | PendingSource::Given => Ok(()),
        }
    }

    /// Computes the CPU's experts, while the device computes previously returned ones. `per_token` is the
    /// number of experts per row.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn compute_on_host(
        &mut self,
        per_token: usize,
        out: &mut B::Buffer, // [T * K, hidden_size]
        encoder: &mut B::Encoder<'_>,
        stats: &mut StepStats,
    ) -> Result<(), EngineError> {
        let PendingSource::Streamed(streamed) = &mut self.source else { return Ok(()) };
        streamed.compute_on_host(self.uses, per_token, out, encoder, &mut |weights, uses| {
            count(weights, uses, None, true, stats);
        })
    }

    /// Returns whether predicting the experts of the layer `distance` layers ahead pays off.
    pub fn reads_ahead(&self, distance: usize) -> bool {
        matches!(&self.source, PendingSource::Streamed(streamed) if streamed.reads_ahead(distance))
    }

    /// Prefetches the predicted experts of a later layer while the disk is idle.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub async fn read_ahead(
        &mut self,
        layer: usize,
        rows: &StepRows,
        hidden: &B::Buffer,
        predicted: &B::Routing,
        encoder: &mut B::Encoder<'_>,
        scratch: &mut RequestScratch<B>,
    ) -> Result<(), EngineError> {
        encoder.read_routing_into(predicted, &mut scratch.routing).await?;
        if reads_hidden(&*self.levels, rows) {
            encoder.read_into(hidden, &mut scratch.hidden).await?;
        }
        scratch.sort(layer, rows, &*self.levels);
        scratch.take_uses(layer, self.placement);
        if let PendingSource::Streamed(streamed) = &mut self.source {
            let RequestScratch { uses, experts, .. } = scratch;
            streamed.read_ahead(layer as u32, ranges(experts), uses)?;
        }
        Ok(())
    }
}

impl<B: Backend> Drop for PendingExperts<'_, B> {
    fn drop(&mut self) {
        *self.spare = recycle(std::mem::take(&mut self.ready));
        if let PendingSource::Streamed(streamed) = &mut self.source {
            streamed.end();
        }
    }
}

impl<B: Backend> RequestScratch<B> {
    /// Sorts the uses of a layer by expert, with their levels. The result depends only on the routing and
    /// each row's policy.
    fn sort(&mut self, layer: usize, rows: &StepRows, levels: &dyn LevelRouter) {
        let Self { routing, hidden, scores, experts, .. } = self;
        experts.clear();
        let layer = u32::try_from(layer).unwrap_or(u32::MAX);
        let chosen = routing.num_experts_per_tok.max(1);
        let width = if levels.reads_hidden() { hidden.len() / rows.len().max(1) } else { 0 };
        let ids = routing.expert_ids.chunks_exact(chosen);
        let weights = routing.expert_weights.chunks_exact(chosen);
        for (row, ((ids, weights), policy)) in (0..).zip(ids.zip(weights).zip(&rows.policies)) {
            if let LevelPolicy::Dual(policy) = policy {
                let at = row as usize * width;
                let hidden = &hidden[at..at + width];
                let token = RoutedToken { layer, experts: ids, weights, hidden };
                scores.clear();
                scores.resize(chosen, [0.0; 5]);
                levels.plane_scores(token, policy.highest, scores);
            }
            for (rank, &expert) in (0..).zip(ids) {
                let level = match policy {
                    LevelPolicy::Fixed(level) => *level,
                    LevelPolicy::Dual(policy) => policy.level(&scores[rank as usize]),
                };
                experts.push((expert, ExpertUse { row, rank, level }));
            }
        }
        experts.sort_unstable_by_key(|(expert, used)| (*expert, used.row, used.rank));
    }

    /// Keeps the uses that this rank computes.
    fn take_uses(&mut self, layer: usize, placement: &Placement) {
        let layer = layer as u32;
        placement.keep_uses(layer, &mut self.experts);
        self.uses.clear();
        self.uses.extend(self.experts.iter().map(|(_, used)| *used));
    }
}
