//! Decoding speed of a model, predicted for a budget of memory for experts.
//!
//! The forecast is a pure function of the store's contents, the use of experts, and the machine's memory and
//! disk speeds. It models no eviction policy: it assumes the best choice of resident experts in hindsight,
//! and [`MISSING_OVER_BEST`] adds the excess of a running cache.

mod demand;
mod forecast;
mod usage;

pub use demand::{Demand, ExpertDemand, LayerDemand};
pub use forecast::{Forecast, LevelMix, bytes_for, forecast, mean_level_for};
pub use usage::{DEFAULT_SKEW, supposed_rates};

/// Ratio of the bytes missed by a running cache to those missed by the best fixed choice of experts.
pub const MISSING_OVER_BEST: f64 = 1.15;

/// Share of memory bandwidth that decoding reaches; docs/perf/025 has 66 to 91 %.
pub const COMPUTE_SHARE: f64 = 0.75;

/// Share of the shorter of reading and computing that does not overlap with the longer.
pub const NOT_OVERLAPPED: f64 = 0.15;

/// Seconds per layer independent of its bytes, spent on distributing work to threads.
pub const LAYER_S: f64 = 40e-6;

/// Seconds per token independent of bytes and layers. Fitted together with [`LAYER_S`] to the bundled model,
/// which fits in cache.
pub const TOKEN_S: f64 = 200e-6;

/// Memory and disk speed of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineSpeed {
    /// Bytes per second that all threads together read from memory.
    pub memory_bytes_per_s: f64,
    /// Disk speeds, by ascending read size.
    pub disk: Vec<DiskSpeed>,
}

/// Disk speed for reads of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskSpeed {
    /// Size of a read in bytes.
    pub read_bytes: u64,
    /// Bytes per second.
    pub bytes_per_s: f64,
}

impl MachineSpeed {
    /// Returns the bytes per second for reads of a size. Interpolates linearly over the logarithm of the
    /// size; beyond the measured sizes, the nearest applies. Returns 0 without measurements.
    ///
    /// ```
    /// use nestling_plan::plan::{DiskSpeed, MachineSpeed};
    ///
    /// let small = DiskSpeed { read_bytes: 4 << 10, bytes_per_s: 0.5e9 };
    /// let large = DiskSpeed { read_bytes: 1 << 20, bytes_per_s: 3e9 };
    /// let machine = MachineSpeed { memory_bytes_per_s: 20e9, disk: vec![small, large] };
    /// assert_eq!(machine.disk_at(512), 0.5e9);
    /// assert_eq!(machine.disk_at(1 << 30), 3e9);
    /// ```
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
