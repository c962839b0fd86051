//! Recording of a model's activity: compute, waits and reads on a timeline, and a record per step.
//!
//! Collection and measurement require a [`Recorder`]. Its memory is bounded: entries beyond the limits are
//! dropped and counted.

mod chrome;
#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard};

use crate::reads::{ReadClass, ReadTiming};
use crate::residency::PlaneId;
use nestling_core::clock::Moment;
use nestling_core::stream_stats::StreamStats;
use nestling_core::sync::whole;

/// Capacity limits of a recorder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordOptions {
    /// Maximum number of activities.
    pub activities_max: usize,
    /// Maximum number of steps.
    pub steps_max: usize,
}

/// An interval on the timeline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Activity {
    /// Kind of activity.
    pub what: ActivityKind,
    /// Layer that the activity belongs to.
    pub layer: u32,
    /// Start time, in nanoseconds since the recorder was created.
    pub start_ns: u64,
    /// End time, in nanoseconds since the recorder was created.
    pub end_ns: u64,
}

/// Kind of an [`Activity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivityKind {
    /// Dense computation of a layer before its experts. For the first layer, includes everything before it.
    Dense,
    /// Experts that were computed together.
    Experts {
        /// Number of experts.
        count: u32,
    },
    /// Time without anything to compute until a read ended. Includes finding and binding experts.
    Wait,
    /// A read of one plane.
    Read {
        /// Plane that was read.
        plane: PlaneId,
        /// Bytes read; 0 if the read failed.
        bytes: u64,
        /// Urgency of the read.
        class: ReadClass,
        /// Time in the queue before the read started, in nanoseconds.
        queued_ns: u64,
    },
}

/// Record of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepRecord {
    /// Rows of the step.
    pub rows: usize,
    /// Start time, in nanoseconds since the recorder was created.
    pub start_ns: u64,
    /// End time, in nanoseconds since the recorder was created.
    pub end_ns: u64,
    /// Streaming statistics of the step.
    pub streaming: StreamStats,
}

/// All entries that a recorder collected.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// Activities, ordered by end time. Reads are ordered by when the step took their results.
    pub activities: Vec<Activity>,
    /// Number of activities dropped for lack of capacity.
    pub activities_dropped: u64,
    /// Steps, in order.
    pub steps: Vec<StepRecord>,
    /// Number of steps dropped for lack of capacity.
    pub steps_dropped: u64,
}

/// Collector of activities and steps, shared by models. Equality is identity.
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
    /// Creates an empty recorder. All its times count from this call.
    pub fn new(options: RecordOptions) -> Self {
        Self { options, origin: Moment::now(), state: Mutex::new(Recording::default()) }
    }

    /// Returns the entries collected since the last call and clears them.
    pub fn take(&self) -> Recording {
        std::mem::take(&mut *self.lock())
    }

    /// Returns the nanoseconds since the recorder was created.
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

    /// Adds a read whose times are relative to `opened`.
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

    /// Adds a step.
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

    /// Adds an activity that started at `start_ns` and ends at the present. Returns its end time.
    pub fn add_since(&self, what: ActivityKind, layer: u32, start_ns: u64) -> u64 {
        let end_ns = self.now_ns();
        self.add(Activity { what, layer, start_ns, end_ns });
        end_ns
    }

    fn lock(&self) -> MutexGuard<'_, Recording> {
        // A critical section leaves complete entries, so a poisoned lock is usable.
        whole(self.state.lock())
    }
}
