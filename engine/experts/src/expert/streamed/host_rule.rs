//! Placement rule for experts whose planes are in host memory: computed by the CPU, or copied to the device.
//!
//! The CPU computes an expert if
//!
//! ```text
//! T_host(m) + activations < max(bytes / link, T_device(m))
//! ```
//!
//! with both sides starting after the work that the layer already assigned to them. Activations travel both
//! ways and count against the CPU. The choice never changes a result.

use nestling_core::backend::HostLink;
use serde::{Deserialize, Serialize};

/// Placement of streamed experts whose planes are in host memory, beside a device that keeps planes there.
/// Never changes a result in strict mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HostExperts {
    /// The device, after copying the planes.
    Never,
    /// The CPU if that is faster than copying to the device, as measured.
    #[default]
    WhenFaster,
    /// Always the CPU.
    Always,
    /// As [`HostExperts::WhenFaster`], with fixed speeds instead of measured ones.
    By(HostSpeeds),
}

/// Speeds that the rule compares.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSpeeds {
    /// Link from host memory to the device.
    pub link: HostLink,
    /// Bytes of planes per second at which the CPU computes one row.
    pub host_bytes_per_s: f64,
}

/// An expert that can be computed on either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCandidate {
    /// Bytes of the planes that its rows use.
    pub bytes: u64,
    /// Number of rows that use it.
    pub rows: usize,
    /// Bytes of a row's activations, one way.
    pub row_bytes: u64,
}

/// Estimated times of an expert in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostTimes {
    /// Compute time on the CPU.
    pub host_s: f64,
    /// Time to copy activations to the host and back, without the round trip paid once per layer.
    pub activations_s: f64,
    /// Time to copy the planes to the device.
    pub link_s: f64,
    /// Compute time on the device, which reads the planes at least once.
    pub device_s: f64,
}

/// Work assigned in a layer, in seconds since the layer's experts were known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostQueues {
    /// End time of the CPU's work.
    pub host_s: f64,
    /// End time of the copies to the device and its work.
    pub device_s: f64,
}

/// Number of row classes with a measured CPU speed: 1, 2, up to 4, 8 and so on.
const CLASSES: usize = 10;

/// Weight of a new measurement.
const NEW: f64 = 0.25;

/// Decay of the measured CPU time each time an expert is not given to the CPU, so that the CPU is retried
/// occasionally.
const FORGET: f64 = 0.998;

/// Number of rows that a CPU computes in about the time of one.
const ROWS_TOGETHER: usize = 2;

#[derive(Clone, Debug)]
pub(super) struct HostRule {
    experts: HostExperts,
    speeds: HostSpeeds,
    /// Measured seconds per byte, by class of rows.
    measured: [Option<f64>; CLASSES],
    queues: HostQueues,
}

/// Returns the class of `rows`, and the number of blocks of that class.
fn class_of(rows: usize) -> (usize, usize) {
    let class = rows.max(1).next_power_of_two().trailing_zeros() as usize;
    let class = class.min(CLASSES - 1);
    (class, rows.max(1).div_ceil(1 << class))
}

impl HostSpeeds {
    /// Estimates the times of an expert, without measurements of the CPU.
    pub fn times(&self, expert: HostCandidate) -> HostTimes {
        let blocks = expert.rows.max(1).div_ceil(ROWS_TOGETHER) as f64;
        self.times_of(expert, blocks / self.host_bytes_per_s)
    }

    /// Estimates the times of an expert, with the CPU's seconds per byte.
    fn times_of(&self, expert: HostCandidate, host_s_per_byte: f64) -> HostTimes {
        let HostLink { bytes_per_s, device_bytes_per_s, .. } = self.link;
        let bytes = expert.bytes as f64;
        let activations = 2.0 * expert.row_bytes as f64 * expert.rows as f64;
        HostTimes {
            host_s: bytes * host_s_per_byte,
            activations_s: activations / bytes_per_s,
            link_s: bytes / bytes_per_s,
            device_s: bytes / device_bytes_per_s,
        }
    }
}

impl HostTimes {
    /// Returns the completion times on the CPU and on the device, after their queued work.
    pub fn ends(&self, queues: HostQueues, round_trip_s: f64) -> (f64, f64) {
        // The round trip is paid once per layer.
        let first = if queues.host_s > 0.0 { 0.0 } else { round_trip_s };
        let host = queues.host_s + first + self.activations_s + self.host_s;
        (host, queues.device_s + self.link_s.max(self.device_s))
    }
}

impl HostRule {
    /// Creates a rule with measured speeds, which [`HostExperts::By`] overrides.
    pub fn new(experts: HostExperts, measured: HostSpeeds) -> Self {
        let speeds = if let HostExperts::By(given) = experts { given } else { measured };
        Self { experts, speeds, measured: [None; CLASSES], queues: HostQueues::default() }
    }

    pub fn begin_layer(&mut self) {
        self.queues = HostQueues::default();
    }

    /// Returns whether the CPU computes an expert, and queues it on the chosen side.
    pub fn takes(&mut self, expert: HostCandidate) -> bool {
        match self.experts {
            HostExperts::Never => return false,
            HostExperts::Always => return true,
            HostExperts::WhenFaster | HostExperts::By(_) => {}
        }
        let times = self.times(expert);
        let (host, device) = times.ends(self.queues, self.speeds.link.round_trip_s);
        let is_faster = host < device;
        if is_faster {
            self.queues.host_s = host;
        } else {
            // Times that are NaN or infinite also choose the device.
            self.queues.device_s = device;
            self.measured[class_of(expert.rows).0].iter_mut().for_each(|known| *known *= FORGET);
        }
        is_faster
    }

    /// Returns the work assigned in the layer so far.
    pub fn queues(&self) -> HostQueues {
        self.queues
    }

    /// Moves an expert that the CPU cannot compute to the device. `before` is the work assigned before it.
    pub fn leave(&mut self, expert: HostCandidate, before: HostQueues) {
        let (_, device_s) = self.times(expert).ends(before, self.speeds.link.round_trip_s);
        self.queues = HostQueues { device_s, ..before };
    }

    fn times(&self, expert: HostCandidate) -> HostTimes {
        let (class, blocks) = class_of(expert.rows);
        if let Some(known) = self.measured[class] {
            return self.speeds.times_of(expert, known * blocks as f64);
        }
        // Extrapolates from fewer rows: time grows at most in proportion to the rows.
        let fewer = (0..class).rev().find_map(|other| {
            Some(self.measured[other]? * (1 << (class - other)) as f64 * blocks as f64)
        });
        match fewer {
            Some(known) => self.speeds.times_of(expert, known),
            None => self.speeds.times(expert),
        }
    }

    /// Records that the CPU computed experts of `bytes` bytes and `rows` rows in `seconds`.
    pub fn observe(&mut self, bytes: u64, rows: usize, seconds: f64) {
        let has_figures = matches!(self.experts, HostExperts::By(_));
        if has_figures || bytes == 0 || seconds <= 0.0 {
            return;
        }
        let (class, blocks) = class_of(rows);
        let found = seconds / bytes as f64 / blocks as f64;
        let known = &mut self.measured[class];
        *known = Some(known.map_or(found, |known| known + NEW * (found - known)));
    }
}

#[cfg(test)]
mod tests {
    use super::{HostCandidate, HostExperts, HostQueues, HostRule, HostSpeeds, class_of};
    use nestling_core::backend::HostLink;

    /// Link of 10 GB/s, CPU of 20 GB/s, device of 1000 GB/s.
    const SPEEDS: HostSpeeds = HostSpeeds {
        link: HostLink { bytes_per_s: 1e10, round_trip_s: 2e-5, device_bytes_per_s: 1e12 },
        host_bytes_per_s: 2e10,
    };

    fn expert(bytes: u64, rows: usize) -> HostCandidate {
        HostCandidate { bytes, rows, row_bytes: 8192 }
    }

    #[test]
    fn one_row_is_computed_where_it_lies_unless_its_way_is_longer() {
        let times = SPEEDS.times(expert(4_000_000, 1));
        assert!((times.host_s - 2e-4).abs() < 1e-9 && (times.link_s - 4e-4).abs() < 1e-9);
        assert!((times.activations_s - 1.6384e-6).abs() < 1e-12, "{times:?}");
        assert!((times.device_s - 4e-6).abs() < 1e-12);
        let mut rule = HostRule::new(HostExperts::By(SPEEDS), SPEEDS);
        assert!(rule.takes(expert(4_000_000, 1)));
        rule.begin_layer();
        // Transferring activations dominates for few bytes.
        assert!(!rule.takes(expert(100_000, 1)));
        rule.begin_layer();
        // Sixteen rows take eight times as long as one or two.
        assert!(!rule.takes(expert(4_000_000, 16)));
    }

    #[test]
    fn a_device_that_is_slower_than_the_link_counts() {
        let link = HostLink { device_bytes_per_s: 1e9, ..SPEEDS.link };
        let slow = HostSpeeds { link, host_bytes_per_s: 2e9 };
        let (host, device) = slow.times(expert(4_000_000, 1)).ends(HostQueues::default(), 0.0);
        assert!(host < device && device == 4e-3, "{host} {device}");
    }

    #[test]
    fn experts_of_a_layer_are_shared_between_both_sides() {
        let mut rule = HostRule::new(HostExperts::By(SPEEDS), SPEEDS);
        rule.begin_layer();
        let places: Vec<bool> = (0..6).map(|_| rule.takes(expert(4_000_000, 1))).collect();
        // 0.22 ms each on the CPU, 0.4 ms on the link.
        assert_eq!(places, [true, false, true, true, false, true]);
    }

    #[test]
    fn what_cannot_be_computed_by_the_processor_counts_for_the_device() {
        let mut rule = HostRule::new(HostExperts::By(SPEEDS), SPEEDS);
        rule.begin_layer();
        let one = expert(4_000_000, 1);
        let before = rule.queues();
        assert!(rule.takes(one));
        rule.leave(one, before);
        // Same as with one expert on the device and an idle CPU.
        assert_eq!(rule.queues(), HostQueues { host_s: 0.0, device_s: 4e-4 });
        let places: Vec<bool> = (0..4).map(|_| rule.takes(one)).collect();
        assert_eq!(places, [true, true, true, false]);
    }

    #[test]
    fn never_and_always_ask_for_no_figures() {
        let nothing = HostSpeeds {
            link: HostLink { bytes_per_s: 0.0, round_trip_s: 0.0, device_bytes_per_s: 0.0 },
            host_bytes_per_s: 0.0,
        };
        assert!(!HostRule::new(HostExperts::Never, SPEEDS).takes(expert(1 << 30, 1)));
        assert!(HostRule::new(HostExperts::Always, nothing).takes(expert(1, 1000)));
        // Zero speeds leave experts to the device.
        assert!(!HostRule::new(HostExperts::WhenFaster, nothing).takes(expert(1 << 20, 1)));
    }

    #[test]
    fn what_is_measured_counts_and_a_processor_that_was_slow_is_tried_again() {
        let mut rule = HostRule::new(HostExperts::WhenFaster, SPEEDS);
        let one = expert(4_000_000, 1);
        assert!(rule.takes(one));
        rule.observe(one.bytes, 1, 1e-2);
        rule.begin_layer();
        assert!(!rule.takes(one));
        // More rows than measured are assumed to take longer.
        assert!(!rule.takes(expert(4_000_000, 4)));
        let again = (1..10_000).find(|_| {
            rule.begin_layer();
            rule.takes(one)
        });
        assert!(again.is_some_and(|tries| tries > 100), "{again:?}");
        rule.observe(one.bytes, 1, 1e-4);
        for _ in 0..20 {
            rule.observe(one.bytes, 1, 1e-4);
        }
        rule.begin_layer();
        assert!(rule.takes(one));
        // Given speeds are never updated.
        let mut given = HostRule::new(HostExperts::By(SPEEDS), SPEEDS);
        given.observe(one.bytes, 1, 1.0);
        assert!(given.takes(one));
    }

    #[test]
    fn classes_of_rows_double() {
        let classes = [0, 1, 2, 3, 4, 5, 8, 512, 513].map(class_of);
        let expected = [(0, 1), (0, 1), (1, 1), (2, 1), (2, 1), (3, 1), (3, 1), (9, 1), (9, 2)];
        assert_eq!(classes, expected);
    }
}
