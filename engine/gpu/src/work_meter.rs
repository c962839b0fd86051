//! How much was recorded, and how long a device is estimated to take for it.

use nestling_core::backend::BackendCounters;

use crate::work::{WorkKind, WorkRates};

/// What was recorded for a device.
#[derive(Debug)]
pub struct WorkMeter {
    /// How fast the device is.
    pub rates: WorkRates,
    /// What was recorded since somebody asked.
    pub counts: BackendCounters,
    /// How long what was recorded and not started is estimated to take.
    nanoseconds: u64,
}

impl WorkMeter {
    /// Of a device so fast.
    pub fn new(rates: WorkRates) -> Self {
        Self { rates, counts: BackendCounters::default(), nanoseconds: 0 }
    }

    /// Nanoseconds of what was recorded and not started, and of so much work.
    pub fn nanoseconds_with(&self, kind: WorkKind, work: u64) -> u64 {
        self.nanoseconds.saturating_add(self.rates.nanoseconds(kind, work))
    }

    /// So much work is recorded. Gives the nanoseconds of all that was recorded and not started.
    pub fn add(&mut self, kind: WorkKind, work: u64) -> u64 {
        self.nanoseconds = self.nanoseconds_with(kind, work);
        self.nanoseconds
    }

    /// All that was recorded is started or forgotten.
    pub fn started(&mut self) {
        self.nanoseconds = 0;
    }
}
