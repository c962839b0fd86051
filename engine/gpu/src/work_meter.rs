//! Meter of recorded work and its estimated duration.

use nestling_core::backend::BackendCounters;

use crate::work::{WorkKind, WorkRates};

/// Work recorded for a device.
#[derive(Debug)]
pub struct WorkMeter {
    /// Speed of the device.
    pub rates: WorkRates,
    /// Counters since they were last taken.
    pub counts: BackendCounters,
    /// Estimated duration of recorded work that is not submitted, in nanoseconds.
    nanoseconds: u64,
}

impl WorkMeter {
    /// Creates a meter of a device with these rates.
    pub fn new(rates: WorkRates) -> Self {
        Self { rates, counts: BackendCounters::default(), nanoseconds: 0 }
    }

    /// Returns the estimated duration in nanoseconds of work that is not submitted, plus additional work.
    pub fn nanoseconds_with(&self, kind: WorkKind, work: u64) -> u64 {
        self.nanoseconds.saturating_add(self.rates.nanoseconds(kind, work))
    }

    /// Adds recorded work. Returns the estimated duration in nanoseconds of all work that is not submitted.
    pub fn add(&mut self, kind: WorkKind, work: u64) -> u64 {
        self.nanoseconds = self.nanoseconds_with(kind, work);
        self.nanoseconds
    }

    /// Resets the duration after recorded work was submitted or discarded.
    pub fn started(&mut self) {
        self.nanoseconds = 0;
    }
}
