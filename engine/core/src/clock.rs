//! Elapsed time.

use web_time::Instant;

/// A point in time.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    at: Instant,
}

impl Moment {
    /// Returns the current time.
    pub fn now() -> Self {
        Self { at: Instant::now() }
    }

    /// Returns the seconds from `earlier` to this moment.
    pub fn seconds_since(self, earlier: Self) -> f64 {
        self.at.saturating_duration_since(earlier.at).as_secs_f64()
    }

    /// Returns the nanoseconds from `earlier` to this moment.
    pub fn nanoseconds_since(self, earlier: Self) -> u64 {
        u64::try_from(self.at.saturating_duration_since(earlier.at).as_nanos()).unwrap_or(u64::MAX)
    }
}
