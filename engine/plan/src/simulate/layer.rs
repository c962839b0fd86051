//! Events of a step: computation, completed reads, and experts whose planes become complete.

use std::collections::VecDeque;

use nestling_formats::{Level, Plane};

use super::machine::Disk;
use super::synthetic::Normal;
use super::uses::{ExpertRows, uses_of};
use super::{CacheUnit, LatePlanes, Outcome, SimulationOptions};
use nestling_core::routing_trace::{LayerRouting, TraceStep};
use nestling_experts::residency::order::{ReadJob, order};
use nestling_experts::residency::{Admission, PlaneId, PlaneState, Residency};

/// Seed of wrong predictions.
const SEED: u64 = 0x5eed;

pub(super) struct Run {
    books: Residency,
    disk: Disk,
    options: SimulationOptions,
    experts_per_token: u32,
    random: Normal,
    now: u64,
    outcome: Outcome,
    evicted: Vec<PlaneId>,
    jobs: Vec<ReadJob>,
    /// Planes to read while the disk is idle, until the next layer starts. Each is admitted only when its
    /// read starts. Otherwise planes would be evicted for reads that never start.
    idle: VecDeque<(PlaneId, Admission)>,
}

impl Run {
    pub fn new(books: Residency, options: SimulationOptions, experts_per_token: u32) -> Self {
        Self {
            books,
            disk: Disk::new(options.machine),
            options,
            experts_per_token,
            random: Normal::new(SEED),
            now: 0,
            outcome: Outcome::default(),
            evicted: Vec::new(),
            jobs: Vec::new(),
            idle: VecDeque::new(),
        }
    }

    /// Returns the results so far.
    pub fn outcome(&self) -> Outcome {
        Outcome {
            elapsed_ns: self.now,
            read_ns: self.disk.busy_ns,
            read_bytes: self.disk.read_bytes,
            counters: self.books.counters(),
            ..self.outcome
        }
    }

    pub fn step(&mut self, step: &TraceStep) {
        self.books.begin_step();
        let rows = |layer: &LayerRouting| layer.rows(self.experts_per_token) as u32;
        // Default: a step without layers has no rows.
        let rows = step.layers.iter().map(rows).max().unwrap_or(0);
        self.outcome.steps += 1;
        self.outcome.rows += u64::from(rows);
        let mut uses = Vec::new();
        let mut next = Vec::new();
        for (number, routing) in (0..).zip(&step.layers) {
            self.spend(self.options.machine.dense_ns(rows));
            uses_of(routing, &mut uses);
            next.clear();
            if let Some(routing) = step.layers.get(number as usize + 1) {
                uses_of(routing, &mut next);
            }
            self.layer(number, &mut uses, &next);
        }
        self.spend(self.options.machine.step_ns);
    }

    /// Advances the clock by `ns` of computation and delivers reads completed in the meantime.
    fn spend(&mut self, ns: u64) {
        self.now += ns;
        self.deliver();
    }

    fn deliver(&mut self) {
        while let Some((id, end)) = self.disk.next_done(self.now) {
            self.books.arrived(id);
            self.read_idle(end);
        }
    }

    fn read_idle(&mut self, now: u64) {
        while self.disk.is_idle()
            && let Some((id, admission)) = self.idle.pop_front()
        {
            self.admit(id, admission, now);
        }
    }

    /// Waits for the next read. Returns false if there is none.
    fn wait(&mut self) -> bool {
        let Some(end) = self.disk.next_end() else { return false };
        self.outcome.stall_ns += end.saturating_sub(self.now);
        self.now = self.now.max(end);
        self.deliver();
        true
    }

    fn layer(&mut self, layer: u32, uses: &mut Vec<ExpertRows>, next: &[ExpertRows]) {
        for used in uses.iter_mut() {
            used.planes = self.planes(layer, used);
            self.outcome.expert_uses += 1;
            self.outcome.asked_bits += bits(used.planes);
            self.replace_copy(layer, used);
            self.books.used(layer, used.expert, used.planes, used.rows);
        }
        self.idle.clear();
        uses.iter().for_each(|used| self.books.pin(layer, used.expert));
        let mut blocked = !self.fetch(layer, uses);
        if !blocked {
            self.prefetch(layer + 1, next);
            self.read_idle(self.now);
        }
        while !uses.is_empty() {
            if let Some(at) = self.computable(layer, uses) {
                self.compute(layer, uses.remove(at));
                if blocked {
                    blocked = !self.fetch(layer, uses);
                }
            } else if !self.wait() && !self.unblock(layer, uses) {
                // Does not happen: the budget was checked to fit one expert.
                return;
            }
        }
    }

    /// Returns the number of requested planes that the expert has.
    fn planes(&self, layer: u32, used: &ExpertRows) -> usize {
        let entry = self.books.table().entry(layer, used.expert);
        let held = entry.map_or(0, |entry| entry.plane_bytes.iter().filter(|b| **b > 0).count());
        used.planes.min(held)
    }

    /// Discards a copy of a lower level, if whole experts are cached: it cannot serve a higher level.
    fn replace_copy(&mut self, layer: u32, used: &ExpertRows) {
        let resident = self.books.resident(layer, used.expert);
        if self.options.unit == CacheUnit::Experts && resident < used.planes {
            self.books.discard(layer, used.expert, &mut Vec::new());
        }
    }

    /// Starts reads of absent planes. Returns false if some do not fit.
    fn fetch(&mut self, layer: u32, uses: &[ExpertRows]) -> bool {
        let mut jobs = std::mem::take(&mut self.jobs);
        jobs.clear();
        uses.iter().for_each(|used| self.add_jobs(layer, used, &mut jobs));
        order(&mut jobs, self.options.order);
        let all = jobs.iter().all(|job| {
            let id = PlaneId { layer, expert: job.expert, plane: job.plane };
            // Planes that are not waited for must not delay the next layer's base planes.
            if self.options.late == LatePlanes::Skip && job.plane > Plane::P2 {
                self.idle.push_back((id, Admission::Optional));
                return true;
            }
            self.admit(id, Admission::Needed, self.now)
        });
        self.jobs = jobs;
        all
    }

    fn add_jobs(&self, layer: u32, used: &ExpertRows, jobs: &mut Vec<ReadJob>) {
        // Default: experts outside the table need no reads.
        let Some(entry) = self.books.table().entry(layer, used.expert) else { return };
        let machine = &self.options.machine;
        for plane in Plane::ALL.into_iter().take(used.planes) {
            let id = PlaneId { layer, expert: used.expert, plane };
            if self.books.state(id) != PlaneState::Absent {
                continue;
            }
            // Computation starts only when the last plane has arrived.
            let last = plane.index() + 1 == used.planes;
            let compute_ns =
                if last { machine.expert_ns(entry.bytes(used.planes), used.rows) } else { 0 };
            let read_ns = machine.transfer_ns(entry.plane_bytes[plane.index()]);
            let (expert, rows) = (used.expert, used.rows);
            jobs.push(ReadJob { expert, plane, rows, read_ns, compute_ns });
        }
    }

    fn admit(&mut self, id: PlaneId, admission: Admission, now: u64) -> bool {
        let mut evicted = std::mem::take(&mut self.evicted);
        evicted.clear();
        let admitted = self.books.admit(id, admission, &mut evicted);
        if self.options.unit == CacheUnit::Experts {
            let mut rest = Vec::new();
            evicted.iter().for_each(|id| self.books.discard(id.layer, id.expert, &mut rest));
        }
        self.evicted = evicted;
        if admitted {
            let entry = self.books.table().entry(id.layer, id.expert);
            let bytes = entry.map_or(0, |entry| entry.plane_bytes[id.plane.index()]);
            self.disk.submit(id, bytes, now);
        }
        admitted
    }

    /// Returns the first expert with all its planes or, if late planes are skipped, with any.
    fn computable(&self, layer: u32, uses: &[ExpertRows]) -> Option<usize> {
        let resident = |used: &ExpertRows| self.books.resident(layer, used.expert);
        let whole = uses.iter().position(|used| resident(used) >= used.planes);
        if whole.is_some() || self.options.late == LatePlanes::Wait {
            return whole;
        }
        uses.iter().position(|used| resident(used) > 0)
    }

    fn compute(&mut self, layer: u32, used: ExpertRows) {
        let planes = used.planes.min(self.books.resident(layer, used.expert));
        let entry = self.books.table().entry(layer, used.expert);
        let bytes = entry.map_or(0, |entry| entry.bytes(planes));
        self.outcome.served_bits += bits(planes);
        self.spend(self.options.machine.expert_ns(bytes, used.rows));
        self.books.unpin(layer, used.expert);
    }

    /// Resolves a deadlock in which parts of many experts fill the memory and nothing is being read. Unpins
    /// all but the first expert until that one is complete.
    fn unblock(&mut self, layer: u32, uses: &[ExpertRows]) -> bool {
        let Some((first, others)) = uses.split_first() else { return false };
        others.iter().for_each(|used| self.books.unpin(layer, used.expert));
        let all = self.fetch(layer, std::slice::from_ref(first));
        others.iter().for_each(|used| self.books.pin(layer, used.expert));
        all
    }

    fn prefetch(&mut self, layer: u32, next: &[ExpertRows]) {
        // Default: prefetching is off unless requested.
        let Some(prefetch) = self.options.prefetch else { return };
        let experts = self.books.table().layers().get(layer as usize).map_or(0, Vec::len);
        let mut predicted = next.to_vec();
        for used in &mut predicted {
            if self.random.uniform() >= prefetch.accuracy {
                used.expert = (self.random.uniform() * experts as f64) as u32;
            }
            used.planes = self.planes(layer, used);
            self.books.expect(layer, used.expert);
        }
        for used in predicted {
            for plane in Plane::ALL.into_iter().take(used.planes) {
                let id = PlaneId { layer, expert: used.expert, plane };
                if self.books.state(id) == PlaneState::Absent {
                    self.idle.push_back((id, Admission::Prefetch));
                }
            }
        }
    }
}

/// Returns the bits of the level that this number of planes provides.
fn bits(planes: usize) -> u64 {
    let level = planes.checked_sub(1).and_then(|last| Level::ALL.get(last));
    level.map_or(0, |level| u64::from(level.bits()))
}
