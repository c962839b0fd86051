//! Experts streamed on demand: planes are read and cached within a budget.
//!
//! Four components are independent of each other. `LayerRequest` tracks the requirements of one layer,
//! `Fetcher` reads planes, `DeviceTier` builds experts on the device, and `HostTier` holds planes evicted
//! from the device and runs the CPU on them. `Residency` decides which planes are resident and which are
//! evicted. `StreamedExperts` passes planes between the components:
//!
//! ```text
//!            LayerRequest
//!                 │ wants
//!  disk ──► Fetcher ──► DeviceTier ──► rows computed by the device
//!                         │    ▲
//!                 evicted ▼    │ recalled, promoted
//!                       HostTier ────► rows computed by the CPU
//! ```
//!
//! Streaming never changes a result, except in steps whose rows are all elastic. An expert is computed when
//! all planes that its rows request have arrived, in any order.

mod background;
mod builder;
mod cpu_unit;
mod device_tier;
mod fetcher;
mod host_rule;
mod host_tier;
mod pinned_planes;
mod prefetch;
mod request;
#[cfg(test)]
mod tests;
mod tiers;

use std::ops::Range;
use std::sync::Arc;

use nestling_formats::{ExpertId, InternalError, Level, Plane, invariant};
use nestling_import::FeedForward as FeedForwardConfig;

pub use cpu_unit::HostOptions;
pub use host_rule::{HostExperts, HostSpeeds};
pub use prefetch::Prefetch;
pub(super) use request::LatePlanes;

use super::source::ExpertSource;
use super::store::StoreSource;
use crate::reads::{ArrivedPlane, ReadClass, ReadOptions, Reads};
use crate::record::Recorder;
use crate::residency::{
    Admission, ExpertTable, Placement, PlaneId, PlaneState, Residency, ResidencyOptions,
};
use builder::ExpertBuilder;
use device_tier::DeviceTier;
use fetcher::{Arrival, ExtentTable, Fetcher};
use host_tier::HostTier;
use nestling_core::backend::{Backend, CopyFence, Encoder, ExpertUse, FeedForward, PinnedExpert};
use nestling_core::clock::Moment;
use nestling_core::error::EngineError;
use nestling_core::expert_memory::ExpertMemory;
use nestling_core::group::RankShare;
use nestling_core::stream_stats::StreamStats;
use nestling_core::weights::ActivationMode;
use request::{ExpertState, LayerRequest, RequestedExpert};

/// Divisor of the budget that bounds the share of unused buffers.
const SPARE_SHARE: u64 = 24;

/// Settings of expert streaming.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamOptions {
    /// Budget for planes of experts, in bytes.
    pub budget_bytes: u64,
    /// Settings of reads.
    pub reads: ReadOptions,
    /// Prefetch mode.
    pub prefetch: Prefetch,
    /// Settings of CPU computation on planes in host memory, beside a device.
    pub host: HostOptions,
}

/// Streamed experts of a model.
pub(super) struct StreamedExperts<B: Backend> {
    request: LayerRequest,
    fetcher: Fetcher,
    device: DeviceTier<B>,
    host: HostTier<B>,
    residency: Residency,
    memory: Arc<ExpertMemory>,
    spare_max: u64,
    /// Planes evicted by residency and not yet dropped.
    evicted: Vec<PlaneId>,
    prefetch: Prefetch,
    /// Ranks of the experts, of which one uses this cache.
    placement: Placement,
    /// Planes that are read in the background because the budget holds all.
    background: Vec<PlaneId>,
    /// True if the previous step had misses; initially true.
    has_waited: bool,
    stats: StreamStats,
}

impl<B: Backend> StreamedExperts<B> {
    /// Creates streamed experts with none resident.
    ///
    /// # Errors
    /// Returns an error if the source is not a store, or a reader thread cannot be started. Also returns an
    /// error if the budget does not fit one token's experts of one layer.
    pub fn open(
        source: Arc<dyn ExpertSource>,
        activations: ActivationMode,
        options: &StreamOptions,
    ) -> Result<Self, EngineError> {
        let no_store = || EngineError::mismatch("source of streamed experts", "a store", "another");
        let source = source.store_source().ok_or_else(no_store)?;
        let reads = Reads::open(Arc::clone(source.store()), &options.reads)?;
        Self::with_reads(source, activations, options, reads)
    }

    fn with_reads(
        source: Arc<StoreSource>,
        activations: ActivationMode,
        options: &StreamOptions,
        reads: Reads,
    ) -> Result<Self, EngineError> {
        let (store, config) = (source.store(), source.config());
        let level = source.level_max().unwrap_or(store.level());
        let table = Arc::new(ExpertTable::of_index(store.index(), config, level)?);
        let spare = spare_bytes(options.budget_bytes, &table, options.reads.pool_bytes);
        let residency = ResidencyOptions::new(&table, options.budget_bytes - spare)?;
        let residency = Residency::new(table, residency)?;
        let experts = config.layers.iter().map(|layer| match layer.feed_forward {
            FeedForwardConfig::Absent | FeedForwardConfig::Dense { .. } => 0,
            FeedForwardConfig::Moe { num_experts, .. } => num_experts,
        });
        let extents = ExtentTable::new(&source, experts)?;
        let builder = Arc::new(ExpertBuilder::new(source, activations)?);
        let device = DeviceTier::new(Arc::clone(&builder), extents.experts_of_layers());
        Ok(Self {
            request: LayerRequest::none(),
            fetcher: Fetcher::new(reads, extents, options, spare),
            device,
            host: HostTier::new(builder, options.host),
            memory: Arc::new(ExpertMemory::with_map(Arc::clone(residency.map()))),
            residency,
            spare_max: options.reads.pool_bytes,
            evicted: Vec::new(),
            prefetch: options.prefetch,
            placement: Placement::in_turn(RankShare::default()),
            background: Vec::new(),
            has_waited: true,
            stats: StreamStats::default(),
        })
    }

    /// Sets the ranks of the experts.
    pub fn set_placement(&mut self, placement: Placement) {
        self.placement = placement;
    }

    pub fn set_recorder(&mut self, recorder: Option<Arc<Recorder>>) {
        self.fetcher.set_recorder(recorder);
    }

    /// Returns the control for changing the memory limits.
    pub fn memory(&self) -> &Arc<ExpertMemory> {
        &self.memory
    }

    pub fn experts_of_layers(&self) -> impl Iterator<Item = usize> + '_ {
        self.fetcher.extents().experts_of_layers()
    }

    pub fn experts_of(&self, layer: usize) -> usize {
        self.fetcher.extents().experts_of(layer as u32)
    }

    pub fn begin_step(&mut self) {
        self.residency.begin_step();
        self.hold_background();
    }

    /// Ends a step and returns the statistics since the last call.
    pub fn take_stats(&mut self) -> StreamStats {
        self.release_background(self.stats.expert_misses);
        std::mem::take(&mut self.stats)
    }

    /// Starts one layer's request: counts uses, pins resident planes and starts reads of misses. `experts`
    /// ascend, each with the range of its rows in `uses`.
    ///
    /// # Errors
    /// Returns an error if the layer lacks an expert. Also has the errors of
    /// [`StreamedExperts::change_memory`].
    pub fn begin(
        &mut self,
        layer: u32,
        experts: impl Iterator<Item = (u32, Range<usize>)>,
        uses: &[ExpertUse],
        late: LatePlanes,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        self.request.begin(layer, late)?;
        self.residency.set_goal(late.goal());
        self.fetcher.forget_later();
        self.change_memory(encoder)?;
        self.land_promotions(CopyFence::default(), encoder)?;
        self.take_in_unwanted()?;
        let count = self.fetcher.extents().experts_of(layer);
        for (expert, range) in experts {
            if expert as usize >= count {
                let expected = format!("an expert below {count}");
                let what = format!("routing of layer {layer}");
                return Err(EngineError::mismatch(what, expected, expert));
            }
            let planes = self.count_use(ExpertId { layer, expert }, &uses[range.clone()])?;
            self.request.want(expert, planes, range)?;
        }
        let Self { request, fetcher, host, residency, stats, .. } = self;
        fetcher.judge_predictions(request, residency, stats);
        host.choose_cpu_work(request, fetcher.extents())?;
        self.await_promotions(encoder)?;
        self.pin()
    }

    /// Counts uses of an expert before its misses are handled. Returns the number of planes its rows need.
    fn count_use(&mut self, id: ExpertId, rows: &[ExpertUse]) -> Result<usize, InternalError> {
        let Self { fetcher, residency, stats, .. } = self;
        let planes = fetcher.extents().planes_wanted(id, rows)?;
        residency.used(id.layer, id.expert, planes, rows.len() as u32);
        let bits: u64 = rows.iter().map(|used| u64::from(used.level.bits())).sum();
        stats.asked_bits += bits;
        let resident = residency.resident(id.layer, id.expert);
        let mut is_hit = true;
        for id in PlaneId::first(id, planes) {
            let bytes = fetcher.extents().bytes(id);
            stats.wanted_bytes += bytes;
            if id.plane.index() >= resident {
                stats.missing_bytes[id.plane.index()] += bytes;
                is_hit = false;
            } else if fetcher.was_predicted(id) {
                stats.ahead_bytes += bytes;
                is_hit = false;
            }
        }
        stats.expert_hits += u64::from(is_hit);
        stats.expert_misses += u64::from(!is_hit);
        Ok(planes)
    }

    /// Counts uses of an expert that was routed on the device, and returns the expert.
    ///
    /// # Errors
    /// [`InternalError`] for an expert that the model does not have.
    pub fn count_found(
        &mut self,
        id: ExpertId,
        rows: &[ExpertUse],
    ) -> Result<Option<Arc<FeedForward<B>>>, InternalError> {
        self.count_use(id, rows)?;
        self.stats.served_bits += rows.iter().map(|used| u64::from(used.level.bits())).sum::<u64>();
        Ok(self.device.bound(id).map(Arc::clone))
    }

    /// Pins experts that fit and plans reads of their missing planes. An expert is admitted with all planes
    /// it must wait for, or waits until others are computed. Later experts then wait too, to prevent
    /// starvation.
    fn pin(&mut self) -> Result<(), EngineError> {
        if self.request.find(ExpertState::Waiting, 0).is_none() {
            return Ok(());
        }
        let layer = self.request.layer();
        let mut from = 0;
        while let Some(at) = self.request.find(ExpertState::Waiting, from) {
            from = at + 1;
            let one = self.request.at(at)?;
            if self.residency.resident(layer, one.expert()) >= one.planes() {
                self.residency.pin(layer, one.expert());
                self.request.pin(at)?;
            }
        }
        from = 0;
        while let Some(at) = self.request.find(ExpertState::Waiting, from) {
            from = at + 1;
            let one = self.request.at(at)?;
            let id = ExpertId { layer, expert: one.expert() };
            let (planes, awaited) = (one.planes(), self.request.late().awaited(one.planes()));
            self.residency.pin(layer, id.expert);
            if !self.admit(id, awaited) {
                self.residency.unpin(layer, id.expert);
                break;
            }
            self.request.pin(at)?;
            for late in Plane::ALL[awaited..planes].iter().map(|plane| PlaneId::new(id, *plane)) {
                match self.residency.state(late) {
                    PlaneState::Reading => self.fetcher.hasten(late),
                    _ => self.fetcher.plan_later(late),
                }
            }
        }
        self.fetcher.sort_later();
        self.drop_evicted()?;
        self.fetcher.order_for(&self.request);
        self.submit(ReadClass::Urgent)
    }

    /// Admits the missing planes of an expert. Returns false if one does not fit.
    fn admit(&mut self, id: ExpertId, planes: usize) -> bool {
        let Self { fetcher, residency, evicted, .. } = self;
        PlaneId::first(id, planes).all(|id| match residency.state(id) {
            PlaneState::Resident => true,
            PlaneState::Reading => {
                fetcher.raise(id);
                true
            }
            PlaneState::Absent => {
                let has_room = residency.admit(id, Admission::Needed, evicted);
                if has_room {
                    fetcher.plan(id);
                }
                has_room
            }
        })
    }

    /// Starts the planned reads. Planes found in host memory are taken from there immediately.
    fn submit(&mut self, class: ReadClass) -> Result<(), EngineError> {
        let Self { fetcher, device, host, residency, stats, .. } = self;
        fetcher.submit(class, |id| {
            let Some(bytes) = host.take(id) else { return Ok(false) };
            stats.recalled_bytes += (*bytes).as_ref().len() as u64;
            device.put(id, ArrivedPlane::held(bytes))?;
            residency.arrived(id);
            Ok(true)
        })?;
        Ok(())
    }

    /// Starts idle reads while the disk has spare depth. A plane is admitted only when its read starts, and
    /// only by evicting planes with lower retention scores. Otherwise planes would be evicted for reads that
    /// never start.
    fn read_later(&mut self) -> Result<(), EngineError> {
        while let Some(id) = self.fetcher.take_later() {
            if self.residency.state(id) == PlaneState::Absent
                && self.residency.admit(id, Admission::Optional, &mut self.evicted)
            {
                self.fetcher.plan(id);
                self.drop_evicted()?;
                self.submit(ReadClass::Idle)?;
            }
        }
        Ok(())
    }

    /// Returns whether predicting the experts of the layer `distance` layers ahead pays off.
    pub fn reads_ahead(&self, distance: usize) -> bool {
        self.fetcher.pays_to_predict(distance, self.request.late())
    }

    /// Prefetches a layer's predicted planes as far as there is space.
    ///
    /// # Errors
    /// [`EngineError::Internal`].
    pub fn read_ahead(
        &mut self,
        layer: u32,
        experts: impl Iterator<Item = (u32, Range<usize>)>,
        uses: &[ExpertUse],
    ) -> Result<(), EngineError> {
        let Self { request, fetcher, residency, evicted, .. } = self;
        fetcher.plan_ahead(layer, experts, uses, request.late(), residency, evicted)?;
        self.drop_evicted()?;
        self.submit(ReadClass::Idle)?;
        self.read_later()
    }

    /// Waits for experts whose planes are all resident and appends them to `ready`. Appends none once all
    /// were returned, or if the CPU has experts to compute before the next wait.
    ///
    /// # Errors
    /// Returns an error if a read failed or planes do not form an expert.
    pub async fn next<'a>(
        &mut self,
        uses: &'a [ExpertUse],
        encoder: &mut B::Encoder<'_>,
        ready: &mut Vec<PinnedExpert<'a, B>>,
    ) -> Result<(), EngineError> {
        loop {
            self.release();
            self.pin()?;
            while let Some(arrival) = self.fetcher.try_next() {
                self.take_in(arrival)?;
            }
            self.read_later()?;
            self.give(uses, encoder, ready)?;
            if ready.is_empty() && self.request.late() == LatePlanes::LeaveOut {
                self.leave_out_late()?;
                self.give(uses, encoder, ready)?;
            }
            if !ready.is_empty() || self.request.is_done() || self.host.has_work() {
                return Ok(());
            }
            if self.request.all_wait() && !self.fetcher.is_busy() {
                if self.device.has_promotions() {
                    // Promotions in progress occupy the space; their planes can be evicted once they are
                    // complete.
                    self.land_promotions(CopyFence::ALL, encoder)?;
                    continue;
                }
                return Err(self.no_room());
            }
            encoder.flush()?;
            let started = Moment::now();
            let arrival = std::future::poll_fn(|context| self.fetcher.poll_next(context)).await;
            self.stats.wait_ns += (Moment::now().seconds_since(started) * 1e9) as u64;
            self.take_in(arrival)?;
        }
    }

    /// Handles a completed read. A failure is an error only if the current layer needs the plane.
    fn take_in(&mut self, arrival: Arrival) -> Result<(), EngineError> {
        let Arrival { id, result } = arrival;
        let is_awaited = self.residency.state(id) == PlaneState::Reading;
        match result {
            // The read was abandoned, so its result is dropped.
            Ok(_) if !is_awaited => Ok(()),
            Ok(plane) => {
                self.stats.read_bytes[id.plane.index()] += plane.as_ref().len() as u64;
                self.device.put(id, plane)?;
                self.residency.arrived(id);
                Ok(())
            }
            Err(error) => {
                if is_awaited {
                    self.residency.failed(id);
                }
                if self.request.wants(id) {
                    return Err(error);
                }
                tracing::debug!(%error, "a read without a waiter failed");
                Ok(())
            }
        }
    }

    /// Handles reads completed between requests. Failed ones are repeated when needed.
    fn take_in_unwanted(&mut self) -> Result<(), EngineError> {
        invariant!(self.request.is_done(), "no layer waits for experts");
        while let Some(arrival) = self.fetcher.try_next() {
            self.take_in(arrival)?;
        }
        Ok(())
    }

    /// Limits pinned experts to the planes that have arrived, if they have their first.
    fn leave_out_late(&mut self) -> Result<(), EngineError> {
        let Self { request, residency, .. } = self;
        let mut from = 0;
        while let Some(at) = request.find(ExpertState::Pinned, from) {
            from = at + 1;
            let one = request.at(at)?;
            let there = residency.resident(request.layer(), one.expert());
            if (1..one.planes()).contains(&there) {
                request.leave_out_late(at, there)?;
            }
        }
        Ok(())
    }

    /// Returns the highest level of an expert whose late planes were left out.
    pub fn cut(&self, expert: u32) -> Option<Level> {
        self.request.expert(expert).and_then(RequestedExpert::cut)
    }

    fn no_room(&self) -> EngineError {
        let expected = "memory for one of them";
        let found = format!("a budget of {} bytes", self.residency.budget_bytes());
        let what = format!("experts of layer {}", self.request.layer());
        EngineError::mismatch(what, expected, found)
    }

    fn give<'a>(
        &mut self,
        uses: &'a [ExpertUse],
        encoder: &mut B::Encoder<'_>,
        ready: &mut Vec<PinnedExpert<'a, B>>,
    ) -> Result<(), EngineError> {
        self.demote_evicted(encoder)?;
        let Self { request, device, residency, stats, .. } = self;
        let (layer, most) = (request.layer(), request.given_at_once());
        let mut from = 0;
        while let Some(at) = request.find(ExpertState::Pinned, from) {
            if ready.len() >= most {
                break;
            }
            from = at + 1;
            let one = request.at(at)?;
            let (expert, planes) = (one.expert(), one.planes());
            let there = residency.resident(layer, expert);
            if there < planes {
                continue;
            }
            let weights = device.acquire(ExpertId { layer, expert }, planes, encoder)?;
            let (uses, cut) = (&uses[one.uses()], one.cut().unwrap_or(Level::L8));
            request.give(at, there)?;
            let bits = uses.iter().map(|used| u64::from(used.level.min(cut).bits()));
            stats.served_bits += bits.sum::<u64>();
            ready.push(PinnedExpert { expert, weights, uses });
        }
        Ok(())
    }

    /// Unpins the returned experts, which have been computed. Includes the CPU's experts if it has no work
    /// left.
    fn release(&mut self) {
        let Self { request, host, residency, .. } = self;
        let layer = request.layer();
        request.release(!host.has_work(), |expert| residency.unpin(layer, expert));
    }

    /// Ends a request, even if experts are still pending.
    pub fn end(&mut self) {
        let Self { request, host, residency, .. } = self;
        let layer = request.layer();
        request.end(|expert| residency.unpin(layer, expert));
        host.end();
    }

    pub fn has_host_work(&self) -> bool {
        self.host.has_work()
    }

    /// Copies the inputs of the CPU's experts to the host.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub async fn read_host_inputs(
        &mut self,
        inputs: &B::Buffer, // [T, hidden_size]
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        self.host.read_inputs(inputs, encoder).await
    }
}

/// Returns the share of a budget reserved for unused buffers. Mixed levels replace planes of one size by
/// planes of another. Without reuse, new buffers would consist of small memory pages, which the disk fills at
/// half the speed.
fn spare_bytes(budget: u64, table: &ExpertTable, most: u64) -> u64 {
    // Replacement never happens if all planes fit.
    let total = table.total_bytes();
    let planes = if budget >= total { total } else { table.least_bytes() };
    most.min(budget / SPARE_SHARE).min(budget.saturating_sub(planes))
}
