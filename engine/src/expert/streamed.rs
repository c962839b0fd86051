//! Experts that are read when they are wanted: planes within a budget.
//!
//! What is there and what has to go is decided by [`Residency`], reads are done by [`Reads`]; here
//! both meet the steps. Nothing here changes a result, but where every row of a step is elastic: an
//! expert is computed when all the planes that its rows ask for have arrived, whatever the order.

use std::ops::Range;
use std::sync::Arc;

use nestling_formats::store::{GroupId, Store};
use nestling_formats::{ExpertId, FeedForward as FeedForwardConfig, Level, Plane};

use super::memory::ExpertMemory;
use super::prefetch::{Prefetch, ReadAhead};
use super::slot::{Maker, Slot};
use super::source::ExpertSource;
use super::stats::StreamStats;
use super::tag::{plane_of, tag_of};
use crate::backend::{Backend, Encoder, ExpertUse, PinnedExpert};
use crate::clock::Moment;
use crate::error::EngineError;
use crate::reads::{ReadClass, ReadDone, ReadOptions, ReadRequest, Reads};
use crate::record::Recorder;
use crate::residency::order::{Job, OrderRule, order};
use crate::residency::{Admission, ExpertTable, PlaneId, PlaneState, Residency, ResidencyOptions};
use crate::weights::ActivationMode;

/// Part of a budget that unused buffers may take.
const SPARE_SHARE: u64 = 24;

/// Experts that are given at once while others wait for the memory of those that were computed.
const GIVEN_AT_ONCE: usize = 8;

/// How much faster an expert is computed with than read, about: only orders of reads depend on it.
const READ_SHARE: u64 = 10;

/// Rows that are computed in the time of one or two.
const ROWS_TOGETHER: u64 = 4;

/// How experts are streamed.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamOptions {
    /// Bytes that planes of experts may take.
    pub budget_bytes: u64,
    /// How planes are read.
    pub reads: ReadOptions,
    /// Whether planes are read before a layer asks for them.
    pub prefetch: Prefetch,
}

/// What is done about planes that have not arrived when there is nothing else to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LatePlanes {
    /// They are waited for.
    WaitFor,
    /// They are left out, P2 never.
    LeaveOut,
}

/// An expert that a layer wants.
struct Wanted {
    expert: u32,
    /// Planes that its rows need, from the first.
    planes: usize,
    /// Its rows in the request's uses.
    uses: Range<usize>,
    /// The highest level that its planes make, where some were left out.
    cut: Option<Level>,
    progress: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// There was no room for its planes yet.
    Unplaced,
    /// Pinned; its planes are there or on their way.
    Placed,
    /// Pinned, and being computed.
    Given,
}

/// The experts of a model, those within the budget in memory.
pub(super) struct StreamedExperts<B: Backend> {
    maker: Maker,
    store: Arc<Store>,
    reads: Reads,
    read_options: ReadOptions,
    residency: Residency,
    slots: Vec<Vec<Slot<B>>>, // [layers][experts], no experts in a dense layer
    memory: Arc<ExpertMemory>,
    /// Those of the request under way, experts ascending.
    wanted: Vec<Wanted>,
    /// Planes that have to go, before they do.
    evicted: Vec<PlaneId>,
    /// Planes to be read, before they are ordered.
    jobs: Vec<PlaneId>,
    ahead: ReadAhead,
    late: LatePlanes,
    stats: StreamStats,
    /// When reads began to count time.
    opened: Moment,
    recorder: Option<Arc<Recorder>>,
}

impl<B: Backend> StreamedExperts<B> {
    /// No expert is resident yet.
    ///
    /// # Errors
    /// A source that is no store; a budget that has no room for one token's experts of one layer;
    /// a platform that gives no thread for reads.
    pub fn open(
        source: Arc<dyn ExpertSource>,
        activations: ActivationMode,
        options: &StreamOptions,
    ) -> Result<Self, EngineError> {
        let no_store = || EngineError::mismatch("source of streamed experts", "a store", "another");
        let store = Arc::clone(source.store().ok_or_else(no_store)?);
        let config = source.config().clone();
        let level = source.level_max().unwrap_or(store.level());
        let table = Arc::new(ExpertTable::of_store(&store, level)?);
        let least = table.least_bytes();
        let spare = spare_bytes(options.budget_bytes, least, &options.reads);
        let residency = ResidencyOptions::new(&table, options.budget_bytes - spare);
        let residency = Residency::new(table, residency)?;
        let opened = Moment::now();
        let reads = Reads::open(Arc::clone(&store), &options.reads)?;
        reads.set_pool_bytes(0);
        reads.set_memory_bytes(options.budget_bytes);
        let experts = config.layers.iter().map(|layer| match layer.feed_forward {
            FeedForwardConfig::Dense { .. } => 0,
            FeedForwardConfig::Moe { num_experts, .. } => num_experts,
        });
        let slots = experts.map(|count| (0..count).map(|_| Slot::empty()).collect()).collect();
        Ok(Self {
            maker: Maker { source, config, activations },
            store,
            reads,
            read_options: options.reads.clone(),
            residency,
            slots,
            memory: Arc::new(ExpertMemory::new()),
            wanted: Vec::new(),
            evicted: Vec::new(),
            jobs: Vec::new(),
            ahead: ReadAhead::new(options.prefetch),
            late: LatePlanes::WaitFor,
            stats: StreamStats::default(),
            opened,
            recorder: None,
        })
    }

    /// Who hears of reads.
    pub fn set_recorder(&mut self, recorder: Option<Arc<Recorder>>) {
        self.recorder = recorder;
    }

    /// What its memory is changed by.
    pub fn memory(&self) -> &Arc<ExpertMemory> {
        &self.memory
    }

    /// How many experts each layer has.
    pub fn experts_of_layers(&self) -> impl Iterator<Item = usize> + '_ {
        self.slots.iter().map(Vec::len)
    }

    /// A step begins.
    pub fn begin_step(&mut self) {
        self.residency.begin_step();
    }

    /// What was done since this was asked last.
    pub fn take_stats(&mut self) -> StreamStats {
        std::mem::take(&mut self.stats)
    }

    /// Makes the memory what [`ExpertMemory`] asks for.
    ///
    /// # Errors
    /// A budget without room for one token's experts of one layer; the old one stays.
    pub fn change_memory(&mut self) -> Result<(), EngineError> {
        let mut result = Ok(());
        if let Some(wanted) = self.memory.take_wanted() {
            let least = self.residency.table().least_bytes();
            let spare = spare_bytes(wanted, least, &self.read_options);
            result = self.residency.set_budget(wanted - spare, &mut self.evicted);
            if result.is_ok() {
                self.reads.set_memory_bytes(wanted);
            }
        }
        let shed = self.memory.take_shed();
        if shed > 0 {
            self.residency.shed(shed, &mut self.evicted);
        }
        self.drop_evicted();
        result
    }

    /// Starts one layer's request: counts its uses, pins what is there, reads what is missing.
    /// `experts` ascend, each with its rows' range in the uses.
    ///
    /// # Errors
    /// An expert that the layer does not have; as [`StreamedExperts::change_memory`].
    pub fn begin(
        &mut self,
        layer: u32,
        experts: impl Iterator<Item = (u32, Range<usize>)>,
        (uses, late): (&[ExpertUse], LatePlanes),
    ) -> Result<(), EngineError> {
        self.late = late;
        self.change_memory()?;
        while let Some(done) = self.reads.try_next() {
            // Nobody waits for it any more: whoever wants it later asks again.
            let _ = self.arrive(done);
        }
        let count = self.slots.get(layer as usize).map_or(0, Vec::len);
        for (expert, range) in experts {
            if expert as usize >= count {
                let expected = format!("an expert below {count}");
                let what = format!("routing of layer {layer}");
                return Err(EngineError::mismatch(what, expected, expert));
            }
            let rows = uses.get(range.clone()).unwrap_or_default();
            let id = ExpertId { layer, expert };
            let planes_of = |used: &ExpertUse| self.maker.source.planes_of(id, used.level);
            let planes = rows.iter().map(planes_of).max().unwrap_or(0);
            self.residency.used(layer, expert, planes, rows.len() as u32);
            self.count(layer, expert, planes, rows);
            let progress = Progress::Unplaced;
            self.wanted.push(Wanted { expert, planes, uses: range, cut: None, progress });
        }
        self.judge_ahead(layer);
        self.place(layer);
        Ok(())
    }

    /// Whether a prediction of what the next layer wants is worth its making.
    pub fn reads_ahead(&self) -> bool {
        self.ahead.is_wanted()
    }

    /// Reads what a layer is predicted to want, as far as there is room that is worth less.
    pub fn read_ahead(
        &mut self,
        layer: u32,
        experts: impl Iterator<Item = (u32, Range<usize>)>,
        uses: &[ExpertUse],
    ) {
        for (expert, range) in experts {
            let rows = uses.get(range).unwrap_or_default();
            let id = ExpertId { layer, expert };
            let planes_of = |used: &ExpertUse| self.maker.source.planes_of(id, used.level);
            let planes = rows.iter().map(planes_of).max().unwrap_or(0);
            self.residency.expect(layer, expert);
            for plane in Plane::ALL.into_iter().take(planes) {
                let id = PlaneId { layer, expert, plane };
                if self.residency.state(id) == PlaneState::Absent {
                    if !self.residency.admit(id, Admission::Prefetch, &mut self.evicted) {
                        break;
                    }
                    self.jobs.push(id);
                    self.ahead.planes.push(id);
                }
            }
        }
        self.drop_evicted();
        self.submit_jobs(ReadClass::Idle);
    }

    /// What was read ahead and is not wanted is not read any more, if it has not been begun.
    fn judge_ahead(&mut self, layer: u32) {
        let (mut read, mut used) = (0, 0);
        for id in std::mem::take(&mut self.ahead.planes) {
            let bytes = self.extent_bytes(id.layer, id.expert, id.plane);
            let wants = |one: &Wanted| one.expert == id.expert && one.planes > id.plane.index();
            if id.layer == layer && self.wanted.iter().any(wants) {
                (read, used) = (read + bytes, used + bytes);
            } else if self.residency.state(id) == PlaneState::Reading
                && self.reads.withdraw(tag_of(id))
            {
                self.residency.failed(id);
            } else {
                read += bytes;
            }
        }
        self.ahead.judge(read, used, &mut self.stats);
    }

    fn count(&mut self, layer: u32, expert: u32, planes: usize, rows: &[ExpertUse]) {
        let bits: u64 = rows.iter().map(|used| u64::from(used.level.bits())).sum();
        self.stats.asked_bits += bits;
        let resident = self.residency.resident(layer, expert);
        if resident >= planes {
            self.stats.expert_hits += 1;
        } else {
            self.stats.expert_misses += 1;
        }
        for plane in Plane::ALL.into_iter().take(planes) {
            let bytes = self.extent_bytes(layer, expert, plane);
            self.stats.wanted_bytes += bytes;
            if plane.index() >= resident {
                self.stats.missing_bytes[plane.index()] += bytes;
            }
        }
    }

    fn extent_bytes(&self, layer: u32, expert: u32, plane: Plane) -> u64 {
        let group = self.store.group(&GroupId::expert_of(layer, expert));
        let extent = group.and_then(|group| self.store.extent(group, plane));
        extent.map_or(0, |extent| extent.length)
    }

    /// Pins what can be, and reads what is missing of it. An expert gets room for all its planes
    /// or waits until others were computed; those behind it wait too, so that it has its turn.
    fn place(&mut self, layer: u32) {
        let unplaced = |wanted: &Wanted| wanted.progress == Progress::Unplaced;
        if !self.wanted.iter().any(unplaced) {
            return;
        }
        let mut wanted = std::mem::take(&mut self.wanted);
        for one in wanted.iter_mut().filter(|one| unplaced(one)) {
            if self.residency.resident(layer, one.expert) >= one.planes {
                self.residency.pin(layer, one.expert);
                one.progress = Progress::Placed;
            }
        }
        for one in wanted.iter_mut().filter(|one| unplaced(one)) {
            self.residency.pin(layer, one.expert);
            if !self.admit(layer, one.expert, one.planes) {
                self.residency.unpin(layer, one.expert);
                break;
            }
            one.progress = Progress::Placed;
        }
        self.wanted = wanted;
        self.drop_evicted();
        self.order_jobs();
        self.submit_jobs(ReadClass::Urgent);
    }

    /// Room for the planes of an expert that are missing; false if there is none for one of them.
    fn admit(&mut self, layer: u32, expert: u32, planes: usize) -> bool {
        for plane in Plane::ALL.into_iter().take(planes) {
            let id = PlaneId { layer, expert, plane };
            match self.residency.state(id) {
                PlaneState::Resident => {}
                PlaneState::Reading => self.reads.promote(tag_of(id)),
                PlaneState::Absent => {
                    if !self.residency.admit(id, Admission::Needed, &mut self.evicted) {
                        return false;
                    }
                    self.jobs.push(id);
                }
            }
        }
        true
    }

    /// The order in which all is read and computed the soonest. An expert is computed when the last
    /// of its planes is there; times are in bytes read.
    fn order_jobs(&mut self) {
        if self.late == LatePlanes::LeaveOut {
            // Bases first: an expert that has its base can be computed.
            self.jobs.sort_by_key(|id| (id.plane.index(), id.expert));
            return;
        }
        let jobs = self.jobs.iter().map(|id| {
            let one = self.wanted.iter().find(|one| one.expert == id.expert);
            let (planes, rows) = one.map_or((0, 1), |one| (one.planes, one.uses.len()));
            let bytes = |plane| self.extent_bytes(id.layer, id.expert, plane);
            let of_expert: u64 = Plane::ALL.into_iter().take(planes).map(bytes).sum();
            let compute = of_expert / READ_SHARE * (rows as u64).div_ceil(ROWS_TOGETHER);
            let compute_ns = if id.plane.index() + 1 == planes { compute } else { 0 };
            let (expert, plane, rows) = (id.expert, id.plane, rows as u32);
            Job { expert, plane, rows, read_ns: bytes(id.plane), compute_ns }
        });
        let mut jobs: Vec<Job> = jobs.collect();
        order(&mut jobs, OrderRule::Johnson);
        for (id, job) in self.jobs.iter_mut().zip(jobs) {
            (id.expert, id.plane) = (job.expert, job.plane);
        }
    }

    fn submit_jobs(&mut self, class: ReadClass) {
        for id in std::mem::take(&mut self.jobs) {
            let group = self.store.group(&GroupId::expert_of(id.layer, id.expert));
            let extent = group.and_then(|group| self.store.extent(group, id.plane));
            match extent {
                Some(extent) => {
                    let (tag, extent) = (tag_of(id), extent.clone());
                    self.reads.submit(ReadRequest { tag, extent, class });
                }
                None => self.residency.failed(id),
            }
        }
    }

    /// Lets go of planes that the bookkeeping has evicted.
    fn drop_evicted(&mut self) {
        for id in self.evicted.drain(..) {
            let slots = self.slots.get_mut(id.layer as usize);
            if let Some(slot) = slots.and_then(|slots| slots.get_mut(id.expert as usize)) {
                slot.drop_plane(id.plane.index());
            }
        }
        self.memory.set_used(self.residency.used_bytes());
    }

    /// Takes in a read that ended.
    fn arrive(&mut self, done: ReadDone) -> Result<(), EngineError> {
        let id = plane_of(done.tag);
        let slots = self.slots.get_mut(id.layer as usize);
        let slot = slots.and_then(|slots| slots.get_mut(id.expert as usize));
        let reading = self.residency.state(id) == PlaneState::Reading;
        if let Some(recorder) = &self.recorder {
            let bytes = done.result.as_ref().map_or(0, |plane| plane.as_ref().len() as u64);
            recorder.add_read(id, (bytes, done.class), done.timing, self.opened);
        }
        match (done.result, slot) {
            (Ok(plane), Some(slot)) if reading => {
                self.stats.read_bytes[id.plane.index()] += plane.as_ref().len() as u64;
                slot.put(id.plane.index(), plane);
                self.residency.arrived(id);
                Ok(())
            }
            (Err(error), _) => {
                if reading {
                    self.residency.failed(id);
                }
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Experts whose planes are all there, bound to them; none once all have been given.
    ///
    /// # Errors
    /// A read that failed; planes that do not make an expert.
    pub async fn next<'a>(
        &mut self,
        layer: u32,
        uses: &'a [ExpertUse],
        encoder: &mut B::Encoder<'_>,
        ready: &mut Vec<PinnedExpert<'a, B>>,
    ) -> Result<(), EngineError> {
        loop {
            self.release_given(layer);
            self.place(layer);
            while let Some(done) = self.reads.try_next() {
                self.arrive_for(layer, done)?;
            }
            self.give(layer, uses, encoder, ready)?;
            if ready.is_empty() && self.late == LatePlanes::LeaveOut {
                self.leave_out(layer);
                self.give(layer, uses, encoder, ready)?;
            }
            if !ready.is_empty() || self.wanted.is_empty() {
                return Ok(());
            }
            if self.wanted.iter().all(|one| one.progress == Progress::Unplaced)
                && self.reads.outstanding() == 0
            {
                return Err(self.no_room(layer));
            }
            encoder.flush()?;
            let started = Moment::now();
            let done = std::future::poll_fn(|context| self.reads.poll_next(context)).await;
            self.stats.wait_ns += (Moment::now().seconds_since(started) * 1e9) as u64;
            self.arrive_for(layer, done)?;
        }
    }

    /// Takes in a read; one that failed matters if this layer wants it.
    fn arrive_for(&mut self, layer: u32, done: ReadDone) -> Result<(), EngineError> {
        let id = plane_of(done.tag);
        let wants = |one: &Wanted| one.expert == id.expert && one.planes > id.plane.index();
        let wanted = id.layer == layer && self.wanted.iter().any(wants);
        match self.arrive(done) {
            Err(error) if wanted => Err(error),
            Err(error) => {
                tracing::debug!(%error, "a read that nobody waits for failed");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Cuts experts down to the planes that are there, those that have their first. Reads that have
    /// not begun make way for those of the next layer.
    fn leave_out(&mut self, layer: u32) {
        let placed = |one: &&mut Wanted| one.progress == Progress::Placed;
        for one in self.wanted.iter_mut().filter(placed) {
            let there = self.residency.resident(layer, one.expert);
            if there == 0 || there >= one.planes {
                continue;
            }
            for plane in Plane::ALL.into_iter().take(one.planes).skip(there) {
                let id = PlaneId { layer, expert: one.expert, plane };
                if self.reads.withdraw(tag_of(id)) {
                    self.residency.failed(id);
                }
            }
            one.planes = there;
            one.cut = Level::ALL.get(there - 1).copied();
        }
    }

    /// The highest level that an expert was given at, where planes were left out.
    pub fn cut(&self, expert: u32) -> Option<Level> {
        self.wanted.iter().find(|one| one.expert == expert).and_then(|one| one.cut)
    }

    fn no_room(&self, layer: u32) -> EngineError {
        let expected = "memory for one of them";
        let found = format!("a budget of {} bytes", self.residency.budget_bytes());
        EngineError::mismatch(format!("experts of layer {layer}"), expected, found)
    }

    fn give<'a>(
        &mut self,
        layer: u32,
        uses: &'a [ExpertUse],
        encoder: &mut B::Encoder<'_>,
        ready: &mut Vec<PinnedExpert<'a, B>>,
    ) -> Result<(), EngineError> {
        let crowded = self.wanted.iter().any(|one| one.progress == Progress::Unplaced);
        let most = if crowded { GIVEN_AT_ONCE } else { usize::MAX };
        let mut wanted = std::mem::take(&mut self.wanted);
        let mut result = Ok(());
        for one in wanted.iter_mut().filter(|one| one.progress == Progress::Placed) {
            if ready.len() >= most {
                break;
            }
            if self.residency.resident(layer, one.expert) < one.planes {
                continue;
            }
            let id = ExpertId { layer, expert: one.expert };
            let slot = self.slots.get_mut(layer as usize);
            let slot = slot.and_then(|slots| slots.get_mut(one.expert as usize));
            let missing =
                || EngineError::mismatch(GroupId::Expert(id).to_string(), "a slot", "none");
            let slot = slot.ok_or_else(missing);
            match slot.and_then(|slot| slot.bind((id, one.planes), &self.maker, encoder)) {
                Ok(weights) => {
                    one.progress = Progress::Given;
                    let uses = uses.get(one.uses.clone()).unwrap_or_default();
                    let most = one.cut.unwrap_or(Level::L8);
                    let bits = uses.iter().map(|used| u64::from(used.level.min(most).bits()));
                    self.stats.served_bits += bits.sum::<u64>();
                    ready.push(PinnedExpert { expert: one.expert, weights, uses });
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        self.wanted = wanted;
        result
    }

    /// Unpins what was given: it has been computed.
    fn release_given(&mut self, layer: u32) {
        let residency = &mut self.residency;
        self.wanted.retain(|one| {
            let given = one.progress == Progress::Given;
            if given {
                residency.unpin(layer, one.expert);
            }
            !given
        });
    }

    /// Ends a request, whether or not all was given.
    pub fn end(&mut self, layer: u32) {
        for one in self.wanted.drain(..) {
            if one.progress != Progress::Unplaced {
                self.residency.unpin(layer, one.expert);
            }
        }
    }
}

/// Part of a budget that is left to buffers between planes: without it, every plane of another
/// size than the one that left would come in new memory, which the disk fills more slowly.
fn spare_bytes(budget: u64, least: u64, options: &ReadOptions) -> u64 {
    options.pool_bytes.min(budget / SPARE_SHARE).min(budget.saturating_sub(least))
}
