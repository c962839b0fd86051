//! Statistics of expert streaming in a step.

use serde::{Deserialize, Serialize};

/// Hits, misses and reads of streamed experts; all zero if all experts are resident.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamStats {
    /// Number of requested experts whose planes were all resident without prefetch.
    pub expert_hits: u64,
    /// Number of requested experts with a plane that was missing or prefetched.
    pub expert_misses: u64,
    /// Bytes of all requested planes, including resident ones.
    pub wanted_bytes: u64,
    /// Bytes missing at the time of the request, by plane, including reads in flight.
    pub missing_bytes: [u64; 5],
    /// Bytes resident only because of prefetch: misses that caused no wait.
    pub ahead_bytes: u64,
    /// Bytes read, by plane, for any purpose. Includes background reads since the previous step.
    pub read_bytes: [u64; 5],
    /// Bytes recalled from host memory, to which a device evicts planes.
    pub recalled_bytes: u64,
    /// Number of experts computed by the CPU in host memory, beside a device.
    pub host_experts: u64,
    /// Number of experts promoted from host memory to the device in parallel with steps, counted on arrival.
    pub promoted_experts: u64,
    /// Number of (row, expert) pairs computed by the CPU.
    pub host_uses: u64,
    /// Bytes of planes used by the CPU instead of being copied to the device.
    pub host_bytes: u64,
    /// Nanoseconds of CPU computation.
    pub host_ns: u64,
    /// Bytes prefetched.
    pub prefetched_bytes: u64,
    /// Bytes of the prefetched planes that the next layer requested.
    pub prefetch_used_bytes: u64,
    /// Nanoseconds of waiting for reads with nothing else to compute.
    pub wait_ns: u64,
    /// Bits requested by the level policy, summed over (row, expert) pairs.
    pub asked_bits: u64,
    /// Bits used in computation, summed over (row, expert) pairs.
    pub served_bits: u64,
}

impl StreamStats {
    /// Adds the statistics of another step.
    pub fn add(&mut self, other: &Self) {
        self.expert_hits += other.expert_hits;
        self.expert_misses += other.expert_misses;
        self.wanted_bytes += other.wanted_bytes;
        self.ahead_bytes += other.ahead_bytes;
        self.prefetched_bytes += other.prefetched_bytes;
        self.prefetch_used_bytes += other.prefetch_used_bytes;
        self.recalled_bytes += other.recalled_bytes;
        self.host_experts += other.host_experts;
        self.promoted_experts += other.promoted_experts;
        self.host_uses += other.host_uses;
        self.host_bytes += other.host_bytes;
        self.host_ns += other.host_ns;
        self.wait_ns += other.wait_ns;
        self.asked_bits += other.asked_bits;
        self.served_bits += other.served_bits;
        for plane in 0..self.read_bytes.len() {
            self.missing_bytes[plane] += other.missing_bytes[plane];
            self.read_bytes[plane] += other.read_bytes[plane];
        }
    }

    /// Returns the missing bytes over all planes.
    pub fn missing_total(&self) -> u64 {
        self.missing_bytes.iter().sum()
    }

    /// Returns the bytes read over all planes.
    pub fn read_total(&self) -> u64 {
        self.read_bytes.iter().sum()
    }

    /// Returns the share of requested bytes that were resident without a read or prefetch for this request.
    /// Returns `None` if no bytes were requested.
    pub fn hit_rate(&self) -> Option<f64> {
        let (wanted, read) = (self.wanted_bytes, self.missing_total() + self.ahead_bytes);
        (wanted > 0).then(|| 1.0 - read as f64 / wanted as f64)
    }
}
