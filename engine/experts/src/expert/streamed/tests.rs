//! Random requests, arrivals in any order, failed reads, budget changes, sheds, late planes and requests that
//! end early. A model derives the expected results from the requests and the completed reads only.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::task::{Context, Poll, Waker};

use nestling_core::backend::Routing;
use nestling_cpu::kernels::Kernels;
use nestling_cpu::threads::ThreadPool;
use nestling_cpu::{Cpu, CpuBuffer};
use nestling_formats::Plane;
use nestling_formats::store::{GroupId, Store};
use proptest::collection::vec;
use proptest::prelude::*;

use super::fetcher::plane_of;
use super::*;
use crate::expert::store::StoreSource;
use crate::reads::DiskByHand;
use crate::residency::ExpertTable;

#[derive(Clone, Debug)]
enum Event {
    Step,
    Request(Request),
    /// A read ends between requests.
    Finish(MockRead),
    /// The budget changes to this share of all planes, or the minimum.
    Budget(u8),
    /// This share of all planes is released.
    Shed(u8),
}

/// A layer's request, and the events during it.
#[derive(Clone, Debug)]
struct Request {
    layer: u8,
    experts: BTreeMap<u8, usize>, // to levels
    is_elastic: bool,
    predicted: BTreeMap<u8, usize>,
    /// Outcomes of reads while the layer waits, repeated cyclically.
    reads: Vec<MockRead>,
    /// Number of calls after which the request ends early.
    ends_after: Option<u8>,
}

#[derive(Clone, Copy, Debug)]
struct MockRead {
    pick: u8,
    fails: bool,
}

fn read() -> impl Strategy<Value = MockRead> {
    (any::<u8>(), prop::bool::weighted(0.04)).prop_map(|(pick, fails)| MockRead { pick, fails })
}

fn request() -> impl Strategy<Value = Request> {
    let experts = || prop::collection::btree_map(any::<u8>(), 0usize..5, 0..9);
    let ends = prop::option::weighted(0.15, 0u8..4);
    (any::<u8>(), experts(), any::<bool>(), experts(), vec(read(), 1..8), ends).prop_map(
        |(layer, experts, is_elastic, predicted, reads, ends_after)| Request {
            layer,
            experts,
            is_elastic,
            predicted,
            reads,
            ends_after,
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        1 => Just(Event::Step),
        6 => request().prop_map(Event::Request),
        2 => read().prop_map(Event::Finish),
        1 => any::<u8>().prop_map(Event::Budget),
        1 => any::<u8>().prop_map(Event::Shed),
    ]
}

/// Expected state, derived from the requests and the completed reads.
struct Model {
    planes: BTreeMap<PlaneId, u64>,
    budget: u64,
    used: u64,
    /// Planes that were ever read from disk.
    came: BTreeSet<PlaneId>,
    came_bytes: u64,
    /// Current request: planes of each expert, experts given, and planes whose read failed.
    wanted: BTreeMap<u32, usize>,
    given: BTreeSet<u32>,
    failed: BTreeSet<PlaneId>,
    stats: StreamStats,
}

impl Model {
    fn ended(&mut self, id: PlaneId, fails: bool) {
        if fails {
            self.failed.insert(id);
        } else {
            self.came.insert(id);
            self.came_bytes += self.planes[&id];
        }
    }

    fn wants(&self, layer: u32, id: PlaneId) -> bool {
        id.layer == layer && self.wanted.get(&id.expert).is_some_and(|n| id.plane.index() < *n)
    }

    /// Checks the invariants that always hold.
    fn check(&mut self, experts: &StreamedExperts<Cpu>) {
        let (mut used, mut reading) = (0, 0);
        for (id, bytes) in &self.planes {
            let state = experts.residency.state(*id);
            let is_there = state == PlaneState::Resident;
            assert_eq!(experts.device.holds(*id), is_there, "{id:?}");
            assert!(!is_there || self.came.contains(id), "{id:?} came from nowhere");
            used += if state == PlaneState::Absent { 0 } else { *bytes };
            reading += usize::from(state == PlaneState::Reading);
        }
        assert!(reading <= experts.fetcher.outstanding(), "a plane waits for no read");
        assert_eq!(used, experts.residency.used_bytes());
        assert!(used <= self.budget.max(self.used), "{used} of {} bytes", self.budget);
        self.used = used;
    }

    /// Checks the invariants while a layer waits: all available experts were given.
    fn check_waits(&self, experts: &StreamedExperts<Cpu>) {
        let StreamedExperts { request, residency, .. } = experts;
        assert_eq!(request.find(ExpertState::Given, 0), None, "given and not computed");
        let mut from = 0;
        while let Some(at) = request.find(ExpertState::Pinned, from) {
            let one = request.at(at).unwrap();
            let there = residency.resident(request.layer(), one.expert());
            assert!(there < request.late().awaited(one.planes()), "it waits for nothing");
            from = at + 1;
        }
    }
}

struct Harness {
    experts: StreamedExperts<Cpu>,
    disk: DiskByHand,
    cpu: Cpu,
    inputs: CpuBuffer,
    outputs: CpuBuffer,
    model: Model,
    source: Arc<StoreSource>,
    builder: ExpertBuilder,
    table: ExpertTable,
    /// Expected outputs of each expert at each level, computed with all planes in memory.
    right: HashMap<(ExpertId, Level), Vec<f32>>,
}

const ROWS_MAX: usize = 16;

impl Harness {
    /// The budget holds the experts of two layers, read on demand. With [`Prefetch::All`] it holds all, and
    /// their reads are in flight.
    fn new(prefetch: Prefetch) -> Self {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nestling-storyteller.nest");
        let store = Arc::new(Store::open(path).unwrap());
        let table = ExpertTable::of_store(&store, Level::L8).unwrap();
        let budget = match prefetch {
            Prefetch::All => table.total_bytes(),
            _ => table.least_bytes() * 2,
        };
        let reads = ReadOptions { depth: 3, pool_bytes: 0, ..ReadOptions::default() };
        let host = HostOptions::default();
        let options = StreamOptions { budget_bytes: budget, reads, prefetch, host };
        let (reads, disk) = Reads::by_hand(Arc::clone(&store), &options.reads);
        let source: Arc<StoreSource> = Arc::new(StoreSource::owned(store, None).unwrap());
        let int8 = ActivationMode::Int8;
        let mut experts =
            StreamedExperts::with_reads(Arc::clone(&source), int8, &options, reads).unwrap();
        let mut cpu = Cpu::with(Arc::new(ThreadPool::new(1)), Kernels::detect());
        experts.enable_device_slots(&mut cpu).unwrap();
        let hidden = source.config().hidden_size;
        let mut inputs = cpu.buffer(ROWS_MAX, hidden).unwrap();
        let row: Vec<f32> = (0..hidden).map(|at| (at * 37 % 101) as f32 / 50.0 - 1.0).collect();
        cpu.encoder().write(&row.repeat(ROWS_MAX), &mut inputs).unwrap();
        let outputs = cpu.buffer(ROWS_MAX, hidden).unwrap();
        let mut planes = BTreeMap::new();
        for (layer, experts) in (0..).zip(table.layers()) {
            for (expert, entry) in (0..).zip(experts) {
                let ids = PlaneId::first(ExpertId { layer, expert }, 5);
                planes.extend(ids.zip(entry.plane_bytes).filter(|(_, bytes)| *bytes > 0));
            }
        }
        let model = Model {
            planes,
            budget,
            used: experts.residency.used_bytes(),
            came: BTreeSet::new(),
            came_bytes: 0,
            wanted: BTreeMap::new(),
            given: BTreeSet::new(),
            failed: BTreeSet::new(),
            stats: StreamStats::default(),
        };
        let builder = ExpertBuilder::new(Arc::clone(&source), int8).unwrap();
        let right = HashMap::new();
        Self { experts, disk, cpu, inputs, outputs, model, source, builder, table, right }
    }

    /// Returns a use of each expert: row `i` uses the `i`th expert.
    fn uses(&self, layer: u32, wanted: &BTreeMap<u8, usize>) -> Vec<(u32, ExpertUse)> {
        let count = self.table.layers()[layer as usize].len() as u32;
        let wanted: BTreeMap<u32, usize> =
            wanted.iter().map(|(expert, level)| (u32::from(*expert) % count, *level)).collect();
        let level = |level: usize| Level::ALL[level];
        let rows = (0..).zip(wanted);
        rows.map(|(row, (expert, at))| (expert, ExpertUse { row, rank: 0, level: level(at) }))
            .collect()
    }

    fn finish(&mut self, read: MockRead) -> bool {
        let Some(tag) = self.disk.finish(usize::from(read.pick), read.fails) else { return false };
        self.model.ended(plane_of(tag), read.fails);
        true
    }

    fn compute(&mut self, ready: &[PinnedExpert<'_, Cpu>]) {
        let weights = vec![0.0; ROWS_MAX];
        let routing =
            Routing { num_experts_per_tok: 1, expert_weights: weights, ..Routing::default() };
        let encoder = &mut self.cpu.encoder();
        encoder.experts(ready, &routing, &self.inputs, &mut self.outputs).unwrap();
    }

    /// Returns the expected outputs of an expert at a level, computed with all its planes in memory.
    fn right(&mut self, id: ExpertId, level: Level) -> Vec<f32> {
        if let Some(known) = self.right.get(&(id, level)) {
            return known.clone();
        }
        let matrices = self.source.matrices(&GroupId::Expert(id)).unwrap();
        let weights = self.builder.bind(id, matrices, &mut self.cpu.encoder()).unwrap();
        let uses = [ExpertUse { row: 0, rank: 0, level }];
        let weights = Arc::new(weights);
        self.compute(&[PinnedExpert { expert: id.expert, weights, uses: &uses }]);
        let values = self.outputs.row(0).to_vec();
        self.right.insert((id, level), values.clone());
        values
    }

    /// Checks a given expert: given once, requested, complete, and with correct outputs.
    fn given(&mut self, layer: u32, pinned: &PinnedExpert<'_, Cpu>, is_elastic: bool) {
        let id = ExpertId { layer, expert: pinned.expert };
        let planes = self.model.wanted[&pinned.expert];
        assert!(self.model.given.insert(pinned.expert), "{id:?} was given twice");
        let cut = self.experts.cut(pinned.expert);
        assert!(is_elastic || cut.is_none(), "{id:?} lacks planes");
        let there = self.experts.residency.resident(layer, pinned.expert);
        assert!(there >= if cut.is_some() { 1 } else { planes }, "{id:?} has {there}");
        for used in pinned.uses {
            let level = used.level.min(cut.unwrap_or(Level::L8));
            self.model.stats.served_bits += u64::from(level.bits());
            let found = self.outputs.row(used.row as usize).to_vec();
            assert!(found == self.right(id, level), "{id:?} at {level:?} has other values");
        }
    }

    fn request(&mut self, request: &Request) {
        let layers = self.table.layers().len();
        let layer = (usize::from(request.layer) % layers) as u32;
        let sorted = self.uses(layer, &request.experts);
        let uses: Vec<ExpertUse> = sorted.iter().map(|(_, used)| *used).collect();
        self.model.failed.clear();
        self.model.given.clear();
        self.model.wanted.clear();
        for (expert, used) in &sorted {
            let id = ExpertId { layer, expert: *expert };
            self.model.stats.asked_bits += u64::from(used.level.bits());
            let store = self.source.store();
            let group = store.group(&GroupId::Expert(id)).unwrap();
            let planes = self.source.planes_of(group, used.level);
            self.model.wanted.insert(*expert, planes);
            let extents = Plane::ALL.into_iter().take(planes);
            let bytes = extents.map(|plane| store.extent(group, plane).unwrap().length);
            self.model.stats.wanted_bytes += bytes.sum::<u64>();
        }
        let late = if request.is_elastic { LatePlanes::LeaveOut } else { LatePlanes::WaitFor };
        let ranges = (0..).zip(&sorted).map(|(at, (expert, _))| (*expert, at..at + 1));
        self.experts.begin(layer, ranges, &uses, late, &mut self.cpu.encoder()).unwrap();
        self.model.check(&self.experts);
        let next = layer + 1;
        if (next as usize) < layers && !request.predicted.is_empty() {
            let predicted = self.uses(next, &request.predicted);
            let ranges = (0..).zip(&predicted).map(|(at, (expert, _))| (*expert, at..at + 1));
            let uses: Vec<ExpertUse> = predicted.iter().map(|(_, used)| *used).collect();
            self.experts.read_ahead(next, ranges, &uses).unwrap();
            self.model.check(&self.experts);
        }
        self.wait(layer, request, &uses);
        self.experts.end();
        self.model.wanted.clear();
        self.model.check(&self.experts);
    }

    /// Waits for and computes the experts of a request.
    fn wait(&mut self, layer: u32, request: &Request, uses: &[ExpertUse]) {
        let mut reads = request.reads.iter().cycle().copied();
        let mut context = Context::from_waker(Waker::noop());
        let mut calls = 0;
        loop {
            if request.ends_after == Some(calls) {
                return;
            }
            calls = calls.saturating_add(1);
            let mut ready = Vec::new();
            let polled = {
                let mut encoder = self.cpu.encoder();
                let next = std::pin::pin!(self.experts.next(uses, &mut encoder, &mut ready));
                next.poll(&mut context)
            };
            self.model.check(&self.experts);
            match polled {
                Poll::Pending => {
                    self.model.check_waits(&self.experts);
                    let read = reads.next().unwrap_or(MockRead { pick: 0, fails: false });
                    assert!(self.finish(read), "it waits, and nothing is read");
                }
                Poll::Ready(Err(error)) => {
                    let failed = self.model.failed.iter();
                    let is_wanted = failed.copied().any(|id| self.model.wants(layer, id));
                    assert!(is_wanted, "no read failed that it wants: {error}");
                    return;
                }
                Poll::Ready(Ok(())) if ready.is_empty() => break,
                Poll::Ready(Ok(())) => {
                    self.compute(&ready);
                    ready.iter().for_each(|one| self.given(layer, one, request.is_elastic));
                }
            }
        }
        assert!(self.model.wanted.keys().eq(&self.model.given), "some were not given");
        let lost = self.model.failed.iter().copied().find(|id| self.model.wants(layer, *id));
        assert!(request.is_elastic || lost.is_none(), "{lost:?} was computed without");
    }

    fn run(&mut self, event: &Event) {
        let share = |share: u8| self.table.total_bytes() / 255 * u64::from(share);
        match event {
            Event::Step => self.experts.begin_step(),
            Event::Request(request) => self.request(request),
            Event::Finish(read) => {
                self.finish(*read);
            }
            Event::Budget(of_all) => {
                self.model.budget = share(*of_all).max(self.table.least_bytes());
                self.experts.memory().set_budget(self.model.budget);
            }
            Event::Shed(of_all) => self.experts.memory().shed(share(*of_all)),
        }
        self.model.check(&self.experts);
    }

    /// Checks that after the last request nothing is pinned and all counts match the model.
    fn end(&mut self) {
        while self.finish(MockRead { pick: 0, fails: false }) {}
        self.experts.memory().shed(u64::MAX);
        let none = Request {
            layer: 0,
            experts: BTreeMap::new(),
            is_elastic: false,
            predicted: BTreeMap::new(),
            reads: Vec::new(),
            ends_after: None,
        };
        self.request(&none);
        self.experts.memory().shed(u64::MAX);
        self.request(&none);
        assert_eq!(self.experts.residency.used_bytes(), 0, "something is pinned for ever");
        let (found, model) = (self.experts.take_stats(), &self.model);
        let bits = |stats: &StreamStats| (stats.asked_bits, stats.served_bits, stats.wanted_bytes);
        assert_eq!(bits(&found), bits(&model.stats));
        assert!(found.read_total() <= model.came_bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, ..ProptestConfig::default() })]

    #[test]
    fn streamed_experts_are_those_that_were_wanted(
        prefetch in prop_oneof![3 => Just(Prefetch::Always), 1 => Just(Prefetch::All)],
        events in vec(event(), 1..40),
    ) {
        let mut harness = Harness::new(prefetch);
        for event in &events {
            harness.run(event);
        }
        harness.end();
    }
}

/// Returns a request of one expert's first plane, with reads that complete in order.
fn request_of(layer: u8, expert: u8) -> Request {
    let reads = vec![MockRead { pick: 0, fails: false }];
    let experts = BTreeMap::from([(expert, 0)]);
    let predicted = BTreeMap::new();
    Request { layer, experts, is_elastic: false, predicted, reads, ends_after: None }
}

#[test]
fn what_a_layer_wants_overtakes_what_is_read_in_the_background() {
    let mut harness = Harness::new(Prefetch::All);
    let planes = harness.model.planes.len();
    assert_eq!(harness.experts.fetcher.outstanding(), planes, "all are on their way");
    let (layer, expert) = (harness.table.layers().len() - 1, harness.table.layers()[0].len() - 1);
    harness.request(&request_of(layer as u8, expert as u8));
    // One plane is requested, and up to the idle depth may have started before it.
    assert!(harness.model.came.len() <= 3, "{} planes came first", harness.model.came.len());
    while harness.finish(MockRead { pick: 0, fails: false }) {}
    harness.request(&request_of(0, 0));
    assert_eq!(harness.model.came.len(), planes, "and in the end all are there");
    assert!(harness.model.planes.keys().all(|id| harness.experts.device.holds(*id)));
    harness.end();
}

#[test]
fn less_memory_ends_reads_in_the_background() {
    let mut harness = Harness::new(Prefetch::All);
    harness.run(&Event::Budget(0));
    harness.request(&request_of(1, 2));
    while harness.finish(MockRead { pick: 0, fails: false }) {}
    let came = harness.model.came.len();
    assert!(came <= 4, "{came} planes were read");
    harness.end();
}
