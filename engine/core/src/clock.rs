//! Elapsed time, where the platform can tell.

#[cfg(not(target_family = "wasm"))]
use std::time::Instant;

/// A moment. On platforms whose standard library has no clock every difference is 0.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    #[cfg(not(target_family = "wasm"))]
    at: Instant,
}

impl Moment {
    /// This one.
    pub fn now() -> Self {
        Self {
            #[cfg(not(target_family = "wasm"))]
            at: Instant::now(),
        }
    }

    /// Seconds from `earlier` to this moment.
    #[cfg(not(target_family = "wasm"))]
    pub fn seconds_since(self, earlier: Self) -> f64 {
        self.at.saturating_duration_since(earlier.at).as_secs_f64()
    }

    /// Seconds from `earlier` to this moment.
    #[cfg(target_family = "wasm")]
    pub fn seconds_since(self, _earlier: Self) -> f64 {
        0.0
    }

    /// Nanoseconds from `earlier` to this moment.
    #[cfg(not(target_family = "wasm"))]
    pub fn nanoseconds_since(self, earlier: Self) -> u64 {
        u64::try_from(self.at.saturating_duration_since(earlier.at).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Nanoseconds from `earlier` to this moment.
    #[cfg(target_family = "wasm")]
    pub fn nanoseconds_since(self, _earlier: Self) -> u64 {
        0
    }
}
