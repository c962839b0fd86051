//! Parameters of simulated machines, and the simulated disk.

use std::collections::VecDeque;

use nestling_experts::residency::{PLANES, PlaneId};

/// Read and compute speed of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Bytes per second of all reads together.
    pub read_bytes_per_second: f64,
    /// Latency of a read in nanoseconds, until its first byte.
    pub read_latency_ns: u64,
    /// Maximum number of concurrent reads.
    pub read_depth: usize,
    /// Minimum time to compute an expert in nanoseconds, at any level and for any rows.
    pub expert_ns_min: u64,
    /// Bytes of expert weights per second when computing one row.
    pub expert_bytes_per_second: f64,
    /// Time of each further row of an expert, as a share of the first.
    pub further_row_share: f64,
    /// Time of a layer's dense parts (attention, router and others) for one row, in nanoseconds.
    pub dense_layer_ns: u64,
    /// Time of the once-per-step work (embedding, head, sampling) in nanoseconds.
    pub step_ns: u64,
}

impl Machine {
    /// Returns the nanoseconds to compute `rows` rows with an expert of `bytes` bytes.
    pub fn expert_ns(&self, bytes: u64, rows: u32) -> u64 {
        let first = bytes as f64 / self.expert_bytes_per_second * 1e9;
        let further = self.further_row_share * f64::from(rows.saturating_sub(1));
        self.expert_ns_min.max((first * (1.0 + further)) as u64)
    }

    /// Returns the nanoseconds of a layer's dense parts for `rows` rows.
    pub fn dense_ns(&self, rows: u32) -> u64 {
        let further = self.further_row_share * f64::from(rows.saturating_sub(1));
        (self.dense_layer_ns as f64 * (1.0 + further)) as u64
    }

    /// Returns the nanoseconds to transfer `bytes` bytes, excluding latency.
    pub fn transfer_ns(&self, bytes: u64) -> u64 {
        (bytes as f64 / self.read_bytes_per_second * 1e9) as u64
    }
}

/// A simulated disk: read latencies overlap up to the read depth, and transfers are sequential.
#[derive(Debug)]
pub(super) struct Disk {
    machine: Machine,
    waiting: VecDeque<(PlaneId, u64)>,
    /// Reads in flight with their end times, which ascend in start order.
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

    /// Submits a read; reads start in submission order.
    pub fn submit(&mut self, id: PlaneId, bytes: u64, now: u64) {
        self.waiting.push_back((id, bytes));
        self.start(now);
    }

    /// Returns whether a read would start immediately.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.flying.len() < self.machine.read_depth.max(1)
    }

    pub fn next_end(&self) -> Option<u64> {
        self.flying.front().map(|(_, end)| *end)
    }

    /// Returns the next read that ended at or before `until`, with its end time.
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
