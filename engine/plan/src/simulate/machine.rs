//! Machines as a simulation sees them.

use std::collections::VecDeque;

use nestling_experts::residency::{PLANES, PlaneId};

/// How fast a machine reads and computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Bytes per second that reads bring, all together.
    pub read_bytes_per_second: f64,
    /// Nanoseconds until the first byte of a read.
    pub read_latency_ns: u64,
    /// Reads under way at a time.
    pub read_depth: usize,
    /// Nanoseconds that computing an expert takes at the least, whatever its level and rows.
    pub expert_ns_min: u64,
    /// Bytes of expert weights per second that one row is computed with.
    pub expert_bytes_per_second: f64,
    /// Nanoseconds that every further row of an expert takes, as a share of its first.
    pub further_row_share: f64,
    /// Nanoseconds of attention, router and other dense parts of a layer, for one row.
    pub dense_layer_ns: u64,
    /// Nanoseconds of what a step does once: embedding, head, sampling.
    pub step_ns: u64,
}

impl Machine {
    /// Nanoseconds to compute `rows` rows with an expert of that many bytes.
    pub fn expert_ns(&self, bytes: u64, rows: u32) -> u64 {
        let first = bytes as f64 / self.expert_bytes_per_second * 1e9;
        let further = self.further_row_share * f64::from(rows.saturating_sub(1));
        self.expert_ns_min.max((first * (1.0 + further)) as u64)
    }

    /// Nanoseconds of a layer's dense parts for `rows` rows.
    pub fn dense_ns(&self, rows: u32) -> u64 {
        let further = self.further_row_share * f64::from(rows.saturating_sub(1));
        (self.dense_layer_ns as f64 * (1.0 + further)) as u64
    }

    /// Nanoseconds to bring that many bytes, once a read delivers.
    pub fn transfer_ns(&self, bytes: u64) -> u64 {
        (bytes as f64 / self.read_bytes_per_second * 1e9) as u64
    }
}

/// A disk: latencies of reads overlap up to its depth, their bytes come one after the other.
#[derive(Debug)]
pub(super) struct Disk {
    machine: Machine,
    waiting: VecDeque<(PlaneId, u64)>,
    /// With the time of their end, which is in the order of their start.
    flying: VecDeque<(PlaneId, u64)>,
    free_at: u64,
    pub busy_ns: u64,
    pub read_bytes: [u64; PLANES],
}

impl Disk {
    pub fn new(machine: Machine) -> Self {
        Self {
            machine,
            waiting: VecDeque::new(),
            flying: VecDeque::new(),
            free_at: 0,
            busy_ns: 0,
            read_bytes: [0; PLANES],
        }
    }

    /// Asks for a plane; reads start in the order in which they are asked for.
    pub fn submit(&mut self, id: PlaneId, bytes: u64, now: u64) {
        self.waiting.push_back((id, bytes));
        self.start(now);
    }

    /// Whether a read would start at once.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.flying.len() < self.machine.read_depth.max(1)
    }

    /// When the next read ends.
    pub fn next_end(&self) -> Option<u64> {
        self.flying.front().map(|(_, end)| *end)
    }

    /// The next read that ended no later than `until`, and when.
    pub fn next_done(&mut self, until: u64) -> Option<(PlaneId, u64)> {
        let (id, end) = *self.flying.front().filter(|(_, end)| *end <= until)?;
        self.flying.pop_front();
        self.start(end);
        Some((id, end))
    }

    fn start(&mut self, now: u64) {
        while self.flying.len() < self.machine.read_depth.max(1)
            && let Some((id, bytes)) = self.waiting.pop_front()
        {
            let begins = self.free_at.max(now.saturating_add(self.machine.read_latency_ns));
            let transfer = self.machine.transfer_ns(bytes);
            self.busy_ns += transfer;
            self.read_bytes[id.plane.index()] += bytes;
            self.free_at = begins.saturating_add(transfer);
            self.flying.push_back((id, self.free_at));
        }
    }
}
