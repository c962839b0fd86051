//! How fast a model will decode whose experts share so many bytes of memory.
//!
//! A pure function of what a store holds, how often its experts are used, and how fast the machine
//! reads memory and disk. It knows no policy: the experts that are kept are those that a best choice
//! with hindsight would keep, and [`MISSING_OVER_BEST`] is what a running cache adds to that.

mod demand;
mod forecast;
mod usage;

pub use demand::{Demand, ExpertDemand, LayerDemand};
pub use forecast::{Forecast, LevelMix, bytes_for, forecast, mean_level_for};
pub use usage::{DEFAULT_SKEW, supposed_rates};

/// Bytes that a running cache misses, over those that the best fixed choice of experts misses.
pub const MISSING_OVER_BEST: f64 = 1.15;

/// Share of the memory's bandwidth that decoding reaches; PERF.md has 66 to 91 %.
pub const COMPUTE_SHARE: f64 = 0.75;

/// What of the shorter of reading and computing is not hidden behind the longer.
pub const NOT_OVERLAPPED: f64 = 0.15;

/// Seconds of a layer that no bytes explain: handing its parts to threads.
pub const LAYER_S: f64 = 40e-6;

/// Seconds of a token that neither bytes nor layers explain. With [`LAYER_S`] fitted to the bundled
/// model, which fits in cache.
pub const TOKEN_S: f64 = 200e-6;

/// How fast a machine moves bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineSpeed {
    /// Bytes of memory that all threads together read in a second.
    pub memory_bytes_per_s: f64,
    /// Bytes that the disk gives in a second, by the size of the reads; sizes ascending.
    pub disk: Vec<DiskSpeed>,
}

/// What a disk gives for reads of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskSpeed {
    /// Bytes of one read.
    pub read_bytes: u64,
    /// Bytes per second.
    pub bytes_per_s: f64,
}

impl MachineSpeed {
    /// Bytes per second for reads of that size: between the measured sizes on a straight line over
    /// the logarithm of the size, beyond them as at the nearest. 0 if nothing was measured.
    pub fn disk_at(&self, read_bytes: u64) -> f64 {
        let after = self.disk.partition_point(|point| point.read_bytes < read_bytes);
        let (before, at) = (self.disk.get(after.wrapping_sub(1)), self.disk.get(after));
        match (before, at) {
            (Some(low), Some(high)) => {
                let log = |bytes: u64| libm::log(bytes.max(1) as f64);
                let width = log(high.read_bytes) - log(low.read_bytes);
                let share = (log(read_bytes) - log(low.read_bytes)) / width.max(1e-9);
                low.bytes_per_s + share * (high.bytes_per_s - low.bytes_per_s)
            }
            (Some(only), None) | (None, Some(only)) => only.bytes_per_s,
            (None, None) => 0.0,
        }
    }
}

#[cfg(test)]
mod tests;
