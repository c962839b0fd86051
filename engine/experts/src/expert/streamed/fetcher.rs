//! Which planes are read, in what order, and what has arrived: those that a layer misses, those that
//! later layers are predicted to want, and refinements that nobody waits for.
//!
//! It counts no memory: room for a prefetch is asked of the `Residency` that it is lent, and all other
//! planes are admitted before it is told of them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use nestling_formats::memory::{OutOfMemory, try_with_capacity};
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

/// How much faster an expert is computed with than read, about: only orders of reads depend on it.
const READ_SHARE: u64 = 10;

/// With fewer than this many reads in flight for each of the depth, the disk goes idle before a
/// layer ends.
const DRY_READS: usize = 2;

/// Rows that are computed in the time of one or two.
const ROWS_TOGETHER: u64 = 4;

/// The reads of streamed experts: what is to be read, what is being read, and what pays.
pub(super) struct Fetcher {
    reads: Reads,
    extents: ExtentTable,
    /// Reads under way at once.
    depth: usize,
    /// Planes that have room and are to be read, in this order.
    planned: Vec<PlaneId>,
    /// The same with their times, while they are ordered.
    timed: Vec<ReadJob>,
    order: ReadOrder,
    /// Planes that nobody waits for and that have no room, to be read while the disk has nothing
    /// else to do.
    later: VecDeque<PlaneId>,
    /// Planes that were read for a prediction, until their layer asks.
    predicted: Vec<PlaneId>,
    ahead: ReadAhead,
    recorder: Option<Arc<Recorder>>,
}

/// A read that has ended.
pub(super) struct Arrival {
    pub id: PlaneId,
    pub result: Result<ArrivedPlane, EngineError>,
}

impl Fetcher {
    /// Nothing is to be read yet.
    pub fn new(reads: Reads, extents: ExtentTable, options: &StreamOptions) -> Self {
        reads.set_pool_bytes(0);
        reads.set_memory_bytes(options.budget_bytes);
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

    /// Who hears of reads.
    pub fn set_recorder(&mut self, recorder: Option<Arc<Recorder>>) {
        self.recorder = recorder;
    }

    /// Bytes that planes and unused buffers may take together.
    pub fn set_memory_bytes(&self, bytes: u64) {
        self.reads.set_memory_bytes(bytes);
    }

    /// Where planes lie in the store.
    pub fn extents(&self) -> &ExtentTable {
        &self.extents
    }

    /// Whether reads are under way or have ended and were not taken.
    pub fn is_busy(&self) -> bool {
        self.reads.outstanding() > 0
    }

    /// Reads that are under way or have ended and were not taken.
    #[cfg(test)]
    pub fn outstanding(&self) -> usize {
        self.reads.outstanding()
    }

    /// A read that has ended, if there is one.
    pub fn try_next(&mut self) -> Option<Arrival> {
        let done = self.reads.try_next()?;
        Some(self.take_in(done))
    }

    /// A read that has ended, now or later.
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

    /// A plane that has room is read next.
    pub fn plan(&mut self, id: PlaneId) {
        self.planned.push(id);
    }

    /// A plane that may be on its way is waited for.
    pub fn raise(&self, id: PlaneId) {
        self.reads.promote(tag_of(id));
    }

    /// Whether reads run beside the caller.
    pub fn has_threads(&self) -> bool {
        self.reads.method() != ReadMethod::Inline
    }

    /// Says whether background reads start.
    pub fn set_background(&self, background: Background) {
        self.reads.set_background(background);
    }

    /// Takes a planned read back, if it has not begun.
    pub fn withdraw(&self, id: PlaneId) -> bool {
        self.reads.withdraw(tag_of(id))
    }

    /// A plane is read when there is time.
    pub fn plan_later(&mut self, id: PlaneId) {
        self.later.push_back(id);
    }

    /// A plane that is read in the background is read before the others there.
    pub fn hasten(&self, id: PlaneId) {
        self.reads.hasten(tag_of(id));
    }

    /// Lower planes before higher ones among those that are read when there is time.
    pub fn sort_later(&mut self) {
        self.later.make_contiguous().sort_by_key(|id| id.plane);
    }

    /// Planes that were to be read when there is time are not.
    pub fn forget_later(&mut self) {
        self.later.clear();
    }

    /// The next plane to be read when there is time, while there is.
    pub fn take_later(&mut self) -> Option<PlaneId> {
        if self.reads.wanted() < self.depth { self.later.pop_front() } else { None }
    }

    /// Orders the planned reads so that all is read and computed the soonest. An expert is computed
    /// when the last of its planes is there; times are in bytes read.
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

    /// Starts the planned reads, but of planes that are nearer than the disk: `recall` takes these in.
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

    /// Whether it pays to predict the experts of the layer `distance` layers ahead. Beyond the next one
    /// it does only where predictions are good and the disk would have nothing to do.
    pub fn pays_to_predict(&self, distance: usize, late: LatePlanes) -> bool {
        if distance <= 1 {
            return self.ahead.is_wanted();
        }
        let is_dry = || self.reads.wanted() < DRY_READS * self.depth;
        self.ahead.is_wanted_further() && late == LatePlanes::WaitFor && is_dry()
    }

    /// Plans reads of what a layer is predicted to want, as far as there is room for it; what has to leave
    /// is named in `evicted`.
    pub fn plan_ahead(
        &mut self,
        layer: u32,
        experts: impl Iterator<Item = (u32, Range<usize>)>,
        uses: &[ExpertUse],
        late: LatePlanes,
        residency: &mut Residency,
        evicted: &mut Vec<PlaneId>,
    ) {
        let of_this_layer = self.later.len();
        for (expert, range) in experts {
            let id = ExpertId { layer, expert };
            let planes = self.extents.planes_wanted(id, &uses[range]);
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
        // In time for the next layer, which this layer's are not any more.
        self.later.rotate_left(of_this_layer);
        let ahead = self.later.len() - of_this_layer;
        self.later.make_contiguous()[..ahead].sort_by_key(|id| id.plane);
    }

    /// Whether a plane was read for a prediction and its layer has not asked yet.
    pub fn was_predicted(&self, id: PlaneId) -> bool {
        self.predicted.contains(&id)
    }

    /// A layer has asked: predictions for it are judged, and what it does not want is not read any more, if
    /// its read has not begun.
    pub fn judge_predictions(
        &mut self,
        request: &LayerRequest,
        residency: &mut Residency,
        stats: &mut StreamStats,
    ) {
        let Self { reads, extents, predicted, ahead, .. } = self;
        let (mut read, mut used) = (0, 0);
        // Those of later layers are judged when these ask.
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

/// One expert's planes in the store.
#[derive(Debug)]
struct ExpertExtents {
    extents: [Option<Extent>; Plane::ALL.len()],
    /// How many of them, from the first, each level needs.
    planes: [usize; Level::ALL.len()],
}

/// Where the planes of every expert lie, looked up in the store's index once: a step asks hundreds of
/// times.
#[derive(Debug)]
pub(super) struct ExtentTable {
    layers: Vec<Vec<ExpertExtents>>, // no experts in a dense layer
}

impl ExtentTable {
    /// Of so many experts in each layer.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(
        source: &StoreSource,
        experts: impl Iterator<Item = usize>,
    ) -> Result<Self, OutOfMemory> {
        let store: &Store = source.store();
        let mut layers = Vec::new();
        for (layer, count) in (0..).zip(experts) {
            let entry = |expert| {
                let id = ExpertId { layer, expert };
                let group = store.group(&GroupId::Expert(id));
                let extent = |plane| store.extent(group?, plane).cloned();
                let planes = Level::ALL.map(|level| source.planes_of(id, level));
                ExpertExtents { extents: Plane::ALL.map(extent), planes }
            };
            let mut entries = try_with_capacity(BOOKS, count)?;
            entries.extend((0..count as u32).map(entry));
            layers.push(entries);
        }
        Ok(Self { layers })
    }

    fn expert(&self, id: ExpertId) -> Option<&ExpertExtents> {
        self.layers.get(id.layer as usize)?.get(id.expert as usize)
    }

    /// How many experts each layer has.
    pub fn experts_of_layers(&self) -> impl Iterator<Item = usize> + '_ {
        self.layers.iter().map(Vec::len)
    }

    /// Experts of one layer.
    pub fn experts_of(&self, layer: u32) -> usize {
        self.layers.get(layer as usize).map_or(0, Vec::len)
    }

    /// Where a plane lies, if the store has it.
    pub fn extent(&self, id: PlaneId) -> Option<&Extent> {
        let expert = self.expert(id.expert_id())?;
        expert.extents[id.plane.index()].as_ref()
    }

    /// Bytes of a plane; 0 where the store has none.
    pub fn bytes(&self, id: PlaneId) -> u64 {
        self.extent(id).map_or(0, |extent| extent.length)
    }

    /// Bytes of an expert's first planes.
    pub fn prefix_bytes(&self, id: ExpertId, planes: usize) -> u64 {
        let extents = self.expert(id).map(|expert| &expert.extents);
        let extents = extents.into_iter().flatten().take(planes).flatten();
        extents.map(|extent| extent.length).sum()
    }

    /// The highest level that an expert's first planes make; none without any.
    pub fn level_of(&self, id: ExpertId, planes: usize) -> Option<Level> {
        let wanted = self.expert(id)?.planes;
        let complete = |level: &Level| (1..=planes).contains(&wanted[level.index()]);
        Level::ALL.into_iter().rfind(complete)
    }

    /// How many of an expert's planes, from the first, its rows need.
    pub fn planes_wanted(&self, id: ExpertId, rows: &[ExpertUse]) -> usize {
        let Some(expert) = self.expert(id) else { return 0 };
        // Default: no row needs no plane.
        rows.iter().map(|used| expert.planes[used.level.index()]).max().unwrap_or(0)
    }
}

/// The number by which reads name a plane. Layers and experts are below 2²⁴ by the limits of
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
