//! What a step did to have its experts there.

/// Hits, misses and reads of streamed experts; all zero where every expert is resident.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// Experts that layers asked for with all their planes there, none of them read ahead.
    pub expert_hits: u64,
    /// Experts that layers asked for of which a plane was missing, or read ahead.
    pub expert_misses: u64,
    /// Bytes of the planes that were asked for, those that were there included.
    pub wanted_bytes: u64,
    /// Bytes that were missing when they were asked for, by plane; those under way included.
    pub missing_bytes: [u64; 5],
    /// Bytes that were there only because they had been read ahead: misses that were not waited for.
    pub ahead_bytes: u64,
    /// Bytes that arrived, by plane, whatever they were read for: a step counts what the background has read since the one
    /// before, too.
    pub read_bytes: [u64; 5],
    /// Bytes that came from memory of the host, where a device keeps what it has no room for.
    pub recalled_bytes: u64,
    /// Experts that the processor computed where they lay, in memory of the host, beside a device.
    pub host_experts: u64,
    /// Experts that moved from there to the device beside the steps, counted when they were there.
    pub promoted_experts: u64,
    /// (Row, expert) pairs that it computed.
    pub host_uses: u64,
    /// Bytes of the planes that were used there in place of being brought to the device.
    pub host_bytes: u64,
    /// Nanoseconds that the processor computed.
    pub host_ns: u64,
    /// Bytes read ahead of being asked for.
    pub prefetched_bytes: u64,
    /// Of those, bytes that the next layer did ask for.
    pub prefetch_used_bytes: u64,
    /// Nanoseconds in which nothing could be computed before a read ended.
    pub wait_ns: u64,
    /// Sum over (row, expert) pairs of the bits that the level policy asked for.
    pub asked_bits: u64,
    /// Sum over (row, expert) pairs of the bits that were computed with.
    pub served_bits: u64,
}

impl StreamStats {
    /// Adds what another step did.
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

    /// Bytes that were missing, of all planes.
    pub fn missing_total(&self) -> u64 {
        self.missing_bytes.iter().sum()
    }

    /// Bytes that arrived, of all planes.
    pub fn read_total(&self) -> u64 {
        self.read_bytes.iter().sum()
    }

    /// Share of the wanted bytes that were there without being read for this request, ahead or not;
    /// none if nothing was wanted.
    pub fn hit_rate(&self) -> Option<f64> {
        let (wanted, read) = (self.wanted_bytes, self.missing_total() + self.ahead_bytes);
        (wanted > 0).then(|| 1.0 - read as f64 / wanted as f64)
    }
}
