//! Plane reads: which planes to read, in which order, and which have arrived. Planes are misses of a layer,
//! predictions for later layers, or refinements of no urgency.
//!
//! The fetcher does no memory accounting. It requests space for prefetches from the borrowed `Residency`; all
//! other planes are admitted before they are planned.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use nestling_formats::memory::try_with_capacity;
use nestling_formats::store::{Extent, GroupId, Store};
use nestling_formats::{ExpertId, InternalError, Invariant, Level, Plane};

use super::StreamOptions;
use super::prefetch::ReadAhead;
use super::request::{LatePlanes, LayerRequest};
use crate::expert::store::StoreSource;
use crate::reads::{ArrivedPlane, Background, ReadClass, ReadDone, ReadMethod, ReadRequest, Reads};
use crate::record::Recorder;
use crate::residency::order::{OrderRule, ReadJob, ReadOrder};
use crate::residency::{Admission, BOOKS, PlaneId, PlaneState, Residency};
use nestling_core::backend::ExpertUse;
use nestling_core::error::EngineError;
use nestling_core::stream_stats::StreamStats;

/// Approximate ratio of read time to compute time of an expert. It only affects the order of reads.
const READ_SHARE: u64 = 10;

/// Reads in flight per unit of depth below which the disk would be idle before a layer ends.
const DRY_READS: usize = 2;

/// Number of rows computed in about the time of one or two.
const ROWS_TOGETHER: u64 = 4;

/// Reads of streamed experts: planned, in flight and predicted.
pub(super) struct Fetcher {
    reads: Reads,
    extents: ExtentTable,
    depth: usize,
    /// Admitted planes to read, in order.
    planned: Vec<PlaneId>,
    /// Planned reads with their times, while sorting.
    timed: Vec<ReadJob>,
    order: ReadOrder,
    /// Planes of no urgency that are not admitted yet, to be read while the disk is idle.
    later: VecDeque<PlaneId>,
    /// Planes read for a prediction whose layer has not started yet.
    predicted: Vec<PlaneId>,
    ahead: ReadAhead,
    recorder: Option<Arc<Recorder>>,
}

pub(super) struct Arrival {
    pub id: PlaneId,
    pub result: Result<ArrivedPlane, EngineError>,
}

impl Fetcher {
    /// Creates a fetcher with an empty queue.
    pub fn new(reads: Reads, extents: ExtentTable, options: &StreamOptions, spare: u64) -> Self {
        reads.set_pool_bytes(0);
        reads.set_memory_bytes(options.budget_bytes, spare);
        Self {
            reads,
            extents,
            depth: options.reads.depth.max(1),
            planned: Vec::new(),
            timed: Vec::new(),
            order: ReadOrder::default(),
            later: VecDeque::new(),
            predicted: Vec::new(),
            ahead: ReadAhead::new(options.prefetch),
            recorder: None,
        }
    }

    pub fn set_recorder(&mut self, recorder: Option<Arc<Recorder>>) {
        self.recorder = recorder;
    }

    /// Sets the maximum bytes of planes and unused buffers together, and those that planes never take.
    pub fn set_memory_bytes(&self, bytes: u64, spare: u64) {
        self.reads.set_memory_bytes(bytes, spare);
    }

    pub fn extents(&self) -> &ExtentTable {
        &self.extents
    }

    /// Returns whether any read is in flight or has an unclaimed result.
    pub fn is_busy(&self) -> bool {
        self.reads.outstanding() > 0
    }

    #[cfg(test)]
    pub fn outstanding(&self) -> usize {
        self.reads.outstanding()
    }

    pub fn try_next(&mut self) -> Option<Arrival> {
        let done = self.reads.try_next()?;
        Some(self.take_in(done))
    }

    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Arrival> {
        self.reads.poll_next(context).map(|done| self.take_in(done))
    }

    fn take_in(&self, done: ReadDone) -> Arrival {
        let id = plane_of(done.tag);
        if let Some(recorder) = &self.recorder {
            let bytes = done.result.as_ref().map_or(0, |plane| plane.as_ref().len() as u64);
            recorder.add_read(id, bytes, done.class, done.timing, self.reads.opened());
        }
        Arrival { id, result: done.result }
    }

    /// Plans the read of an admitted plane.
    pub fn plan(&mut self, id: PlaneId) {
        self.planned.push(id);
    }

    /// Raises a plane's read, if it is in flight, to urgent.
    pub fn raise(&self, id: PlaneId) {
        self.reads.promote(tag_of(id));
    }

    /// Returns whether reads run on other threads than the caller's.
    pub fn has_threads(&self) -> bool {
        self.reads.method() != ReadMethod::Inline
    }

    pub fn set_background(&self, background: Background) {
        self.reads.set_background(background);
    }

    /// Withdraws a submitted read. Returns false if it has already started.
    pub fn withdraw(&self, id: PlaneId) -> bool {
        self.reads.withdraw(tag_of(id))
    }

    /// Queues a plane to be read while the disk is idle.
    pub fn plan_later(&mut self, id: PlaneId) {
        self.later.push_back(id);
    }

    /// Raises a plane's background read to idle.
    pub fn hasten(&self, id: PlaneId) {
        self.reads.hasten(tag_of(id));
    }

    /// Sorts the planes queued by [`Fetcher::plan_later`], lower planes first.
    pub fn sort_later(&mut self) {
        self.later.make_contiguous().sort_by_key(|id| id.plane);
    }

    /// Clears the planes queued by [`Fetcher::plan_later`].
    pub fn forget_later(&mut self) {
        self.later.clear();
    }

    /// Returns the next plane queued by [`Fetcher::plan_later`], if the disk has spare depth.
    pub fn take_later(&mut self) -> Option<PlaneId> {
        if self.reads.outstanding_foreground() < self.depth { self.later.pop_front() } else { None }
    }

    /// Sorts the planned reads to minimize the time until all experts are computed. An expert is computed
    /// once its last plane arrives. Times are measured in bytes read.
    pub fn order_for(&mut self, request: &LayerRequest) {
        let Self { planned, timed, order, extents, .. } = self;
        timed.clear();
        timed.extend(planned.iter().map(|id| {
            let wanted = request.expert(id.expert);
            let (planes, rows) = wanted
                .map_or((0, 1), |one| (request.late().awaited(one.planes()), one.uses().len()));
            let compute = extents.prefix_bytes(id.expert_id(), planes) / READ_SHARE;
            let compute = compute * (rows as u64).div_ceil(ROWS_TOGETHER);
            let compute_ns = if id.plane.index() + 1 == planes { compute } else { 0 };
            let (expert, plane, rows) = (id.expert, id.plane, rows as u32);
            ReadJob { expert, plane, rows, read_ns: extents.bytes(*id), compute_ns }
        }));
        order.sort(timed, OrderRule::Johnson);
        for (id, job) in planned.iter_mut().zip(timed) {
            (id.expert, id.plane) = (job.expert, job.plane);
        }
    }

    /// Submits the planned reads, except planes that `recall` takes from a nearer tier than the disk.
    ///
    /// # Errors
    /// [`InternalError`] for a plane that the store does not have.
    pub fn submit(
        &mut self,
        class: ReadClass,
        mut recall: impl FnMut(PlaneId) -> Result<bool, InternalError>,
    ) -> Result<(), InternalError> {
        for id in self.planned.drain(..) {
            if !recall(id)? {
                let extent =
                    self.extents.extent(id).invariant("a plane with room is in the store")?;
                let (tag, extent) = (tag_of(id), extent.clone());
                self.reads.submit(ReadRequest { tag, extent, class });
            }
        }
        Ok(())
    }

    /// Returns whether predicting the experts of the layer `distance` layers ahead pays off. Beyond the next
    /// layer, predictions must be good and the disk would otherwise be idle.
    pub fn pays_to_predict(&self, distance: usize, late: LatePlanes) -> bool {
        if distance <= 1 {
            return self.ahead.is_wanted();
        }
        let is_dry = || self.reads.outstanding_foreground() < DRY_READS * self.depth;
        self.ahead.is_wanted_further() && late == LatePlanes::WaitFor && is_dry()
    }

    /// Plans prefetches for a later layer as far as there is space. Planes to evict are appended to
    /// `evicted`.
    pub fn plan_ahead(
        &mut self,
        layer: u32,
        experts: impl Iterator<Item = (u32, Range<usize>)>,
        uses: &[ExpertUse],
        late: LatePlanes,
        residency: &mut Residency,
        evicted: &mut Vec<PlaneId>,
    ) -> Result<(), InternalError> {
        let of_this_layer = self.later.len();
        for (expert, range) in experts {
            let id = ExpertId { layer, expert };
            let planes = self.extents.planes_wanted(id, &uses[range])?;
            residency.expect(layer, expert);
            let awaited = late.awaited(planes);
            for id in PlaneId::first(id, awaited) {
                match residency.state(id) {
                    PlaneState::Resident => {}
                    PlaneState::Reading => self.reads.hasten(tag_of(id)),
                    PlaneState::Absent => {
                        if !residency.admit(id, Admission::Prefetch, evicted) {
                            break;
                        }
                        self.planned.push(id);
                        self.predicted.push(id);
                    }
                }
            }
            let late = Plane::ALL[awaited..planes].iter().map(|plane| PlaneId::new(id, *plane));
            self.later.extend(late);
        }
        // These planes are due for the next layer; planes of the current layer are too late by then.
        self.later.rotate_left(of_this_layer);
        let ahead = self.later.len() - of_this_layer;
        self.later.make_contiguous()[..ahead].sort_by_key(|id| id.plane);
        Ok(())
    }

    /// Returns whether a plane was read for a prediction whose layer has not started yet.
    pub fn was_predicted(&self, id: PlaneId) -> bool {
        self.predicted.contains(&id)
    }

    /// Evaluates the predictions for a layer once its request is known. Unneeded reads that have not started
    /// are withdrawn.
    pub fn judge_predictions(
        &mut self,
        request: &LayerRequest,
        residency: &mut Residency,
        stats: &mut StreamStats,
    ) {
        let Self { reads, extents, predicted, ahead, .. } = self;
        let (mut read, mut used) = (0, 0);
        // Predictions for later layers are evaluated later.
        for id in predicted.extract_if(.., |id| id.layer <= request.layer()) {
            let bytes = extents.bytes(id);
            if request.wants(id) {
                (read, used) = (read + bytes, used + bytes);
            } else if residency.state(id) == PlaneState::Reading && reads.withdraw(tag_of(id)) {
                residency.failed(id);
            } else {
                read += bytes;
            }
        }
        ahead.judge(read, used, stats);
        reads.set_idle_depth(ahead.depth());
    }
}

#[derive(Debug)]
struct ExpertExtents {
    extents: [Option<Extent>; Plane::ALL.len()],
    /// Number of planes, from the first, that each level needs.
    planes: [usize; Level::ALL.len()],
}

/// Locations of all experts' planes, looked up in the store's index once because each step uses them hundreds
/// of times.
#[derive(Debug)]
pub(super) struct ExtentTable {
    layers: Vec<Vec<ExpertExtents>>, // no experts in a dense layer
}

impl ExtentTable {
    /// Creates the table for this number of experts in each layer.
    ///
    /// # Errors
    /// Returns an error if the memory or an expert is missing.
    pub fn new(
        source: &StoreSource,
        experts: impl Iterator<Item = usize>,
    ) -> Result<Self, EngineError> {
        let store: &Store = source.store();
        let mut layers = Vec::new();
        for (layer, count) in (0..).zip(experts) {
            let entry = |expert| {
                let id = ExpertId { layer, expert };
                let group = store.group(&GroupId::Expert(id));
                let group = group.invariant("a checked store has every expert")?;
                let extent = |plane| store.extent(group, plane).cloned();
                let planes = Level::ALL.map(|level| source.planes_of(group, level));
                Ok::<_, InternalError>(ExpertExtents { extents: Plane::ALL.map(extent), planes })
            };
            let mut entries = try_with_capacity(BOOKS, count)?;
            for expert in 0..count as u32 {
                entries.push(entry(expert)?);
            }
            layers.push(entries);
        }
        Ok(Self { layers })
    }

    fn expert(&self, id: ExpertId) -> Option<&ExpertExtents> {
        self.layers.get(id.layer as usize)?.get(id.expert as usize)
    }

    pub fn experts_of_layers(&self) -> impl Iterator<Item = usize> + '_ {
        self.layers.iter().map(Vec::len)
    }

    pub fn experts_of(&self, layer: u32) -> usize {
        self.layers.get(layer as usize).map_or(0, Vec::len)
    }

    /// Returns the extent of a plane, if the store has it.
    pub fn extent(&self, id: PlaneId) -> Option<&Extent> {
        let expert = self.expert(id.expert_id())?;
        expert.extents[id.plane.index()].as_ref()
    }

    /// Returns the bytes of a plane; 0 if the store lacks it.
    pub fn bytes(&self, id: PlaneId) -> u64 {
        self.extent(id).map_or(0, |extent| extent.length)
    }

    /// Returns the bytes of an expert's first planes.
    pub fn prefix_bytes(&self, id: ExpertId, planes: usize) -> u64 {
        let extents = self.expert(id).map(|expert| &expert.extents);
        let extents = extents.into_iter().flatten().take(planes).flatten();
        extents.map(|extent| extent.length).sum()
    }

    /// Returns the highest level that an expert's first planes provide, or `None` without planes.
    pub fn level_of(&self, id: ExpertId, planes: usize) -> Option<Level> {
        let wanted = self.expert(id)?.planes;
        let complete = |level: &Level| (1..=planes).contains(&wanted[level.index()]);
        Level::ALL.into_iter().rfind(complete)
    }

    /// Returns the number of an expert's planes, from the first, that its rows need.
    ///
    /// # Errors
    /// [`InternalError`] for an expert outside of the table.
    pub fn planes_wanted(&self, id: ExpertId, rows: &[ExpertUse]) -> Result<usize, InternalError> {
        let expert = self.expert(id).invariant("routing chooses experts of the model")?;
        // Default: without rows, no planes are needed.
        Ok(rows.iter().map(|used| expert.planes[used.level.index()]).max().unwrap_or(0))
    }
}

/// Returns the number that identifies a plane in reads. Layers and experts are below 2²⁴ by the limits of
/// configurations.
fn tag_of(id: PlaneId) -> u64 {
    u64::from(id.layer) << 32 | u64::from(id.expert) << 8 | id.plane.index() as u64
}

pub(super) fn plane_of(tag: u64) -> PlaneId {
    let plane = Plane::ALL[(tag & 0xff) as usize % Plane::ALL.len()];
    PlaneId { layer: (tag >> 32) as u32, expert: (tag >> 8) as u32 & 0xff_ffff, plane }
}

#[cfg(test)]
mod tests {
    use nestling_formats::Plane;

    use super::{PlaneId, plane_of, tag_of};

    #[test]
    fn tags_name_planes() {
        for (layer, expert) in [(0, 0), (47, 127), (93, 511), (1 << 20, (1 << 24) - 1)] {
            for plane in Plane::ALL {
                let id = PlaneId { layer, expert, plane };
                assert_eq!(plane_of(tag_of(id)), id);
            }
        }
    }
}
