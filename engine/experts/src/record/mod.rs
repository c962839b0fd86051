//! What a model does while it runs, kept for whoever asks: when it computed, waited and read, and
//! what every step did.
//!
//! Without a [`Recorder`] nothing is collected and nothing is measured. With one, memory is bounded:
//! what comes after the bound is counted and dropped.

mod chrome;
#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard};

use crate::reads::{ReadClass, ReadTiming};
use crate::residency::PlaneId;
use nestling_core::clock::Moment;
use nestling_core::stream_stats::StreamStats;
use nestling_core::sync::whole;

/// How much is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordOptions {
    /// Most activities of the timeline.
    pub activities_max: usize,
    /// Most steps.
    pub steps_max: usize,
}

/// Something that took time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Activity {
    /// What.
    pub what: ActivityKind,
    /// The layer that it belongs to.
    pub layer: u32,
    /// Nanoseconds from the recorder's beginning to when it began.
    pub start_ns: u64,
    /// Nanoseconds from the recorder's beginning to when it ended.
    pub end_ns: u64,
}

/// What took time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivityKind {
    /// All that a layer computes before its experts; of the first layer what comes before it too.
    Dense,
    /// Experts that were computed together.
    Experts {
        /// How many.
        count: u32,
    },
    /// Nothing could be computed before a read ended; finding and binding experts is part of it.
    Wait,
    /// A plane was read.
    Read {
        /// The plane.
        plane: PlaneId,
        /// Its bytes; 0 if it failed.
        bytes: u64,
        /// How soon it was wanted.
        class: ReadClass,
        /// Nanoseconds that it waited before it began.
        queued_ns: u64,
    },
}

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepRecord {
    /// Rows of the step.
    pub rows: usize,
    /// Nanoseconds from the recorder's beginning to when it began.
    pub start_ns: u64,
    /// Nanoseconds from the recorder's beginning to when it ended.
    pub end_ns: u64,
    /// What was done to have its experts there.
    pub streaming: StreamStats,
}

/// Everything that was kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// In the order in which they ended; reads in the order in which the step met them.
    pub activities: Vec<Activity>,
    /// Activities that there was no room for.
    pub activities_dropped: u64,
    /// Steps, in order.
    pub steps: Vec<StepRecord>,
    /// Steps that there was no room for.
    pub steps_dropped: u64,
}

/// Collects what the models that it is given to do. Shared; two are equal if they are the same one.
#[derive(Debug)]
pub struct Recorder {
    options: RecordOptions,
    origin: Moment,
    state: Mutex<Recording>,
}

impl PartialEq for Recorder {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Recorder {
    /// Begins to count time.
    pub fn new(options: RecordOptions) -> Self {
        Self { options, origin: Moment::now(), state: Mutex::new(Recording::default()) }
    }

    /// What was kept since this was asked last.
    pub fn take(&self) -> Recording {
        std::mem::take(&mut *self.lock())
    }

    /// Nanoseconds since the beginning.
    pub fn now_ns(&self) -> u64 {
        Moment::now().nanoseconds_since(self.origin)
    }

    /// Adds an activity.
    pub fn add(&self, activity: Activity) {
        if self.options.activities_max == 0 {
            return;
        }
        let mut state = self.lock();
        if state.activities.len() < self.options.activities_max {
            state.activities.push(activity);
        } else {
            state.activities_dropped += 1;
        }
    }

    /// Adds a read, whose times are counted from `opened` on.
    pub(crate) fn add_read(
        &self,
        plane: PlaneId,
        bytes: u64,
        class: ReadClass,
        timing: ReadTiming,
        opened: Moment,
    ) {
        let opened_ns = opened.nanoseconds_since(self.origin);
        let queued_ns = timing.started_ns.saturating_sub(timing.queued_ns);
        self.add(Activity {
            what: ActivityKind::Read { plane, bytes, class, queued_ns },
            layer: plane.layer,
            start_ns: opened_ns.saturating_add(timing.started_ns),
            end_ns: opened_ns.saturating_add(timing.finished_ns),
        });
    }

    /// Adds what a step cost.
    pub fn add_step(&self, step: StepRecord) {
        if self.options.steps_max == 0 {
            return;
        }
        let mut state = self.lock();
        if state.steps.len() < self.options.steps_max {
            state.steps.push(step);
        } else {
            state.steps_dropped += 1;
        }
    }

    /// Adds what began at `start_ns` and ends now; gives the moment.
    pub fn add_since(&self, what: ActivityKind, layer: u32, start_ns: u64) -> u64 {
        let end_ns = self.now_ns();
        self.add(Activity { what, layer, start_ns, end_ns });
        end_ns
    }

    fn lock(&self) -> MutexGuard<'_, Recording> {
        // Every critical section leaves whole entries, so a poisoned lock is usable.
        whole(self.state.lock())
    }
}
