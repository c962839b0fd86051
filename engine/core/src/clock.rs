//! Elapsed time, on platforms with a clock.

#[cfg(not(target_family = "wasm"))]
use std::time::Instant;

/// A point in time. On platforms without a clock in the standard library, all differences are 0.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    #[cfg(not(target_family = "wasm"))]
    at: Instant,
}

impl Moment {
    /// Returns the current time.
    pub fn now() -> Self {
        Self {
            #[cfg(not(target_family = "wasm"))]
            at: Instant::now(),
        }
    }

    /// Returns the seconds from `earlier` to this moment.
    #[cfg(not(target_family = "wasm"))]
    pub fn seconds_since(self, earlier: Self) -> f64 {
        self.at.saturating_duration_since(earlier.at).as_secs_f64()
    }

    /// Returns 0, since the platform has no clock.
    #[cfg(target_family = "wasm")]
    pub fn seconds_since(self, _earlier: Self) -> f64 {
        0.0
    }

    /// Returns the nanoseconds from `earlier` to this moment.
    #[cfg(not(target_family = "wasm"))]
    pub fn nanoseconds_since(self, earlier: Self) -> u64 {
        u64::try_from(self.at.saturating_duration_since(earlier.at).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns 0, since the platform has no clock.
    #[cfg(target_family = "wasm")]
    pub fn nanoseconds_since(self, _earlier: Self) -> u64 {
        0
    }
}
