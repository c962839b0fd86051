//! Priority order of generations: priorities, deadlines and fair shares.

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Waiting time in seconds that raises a generation's priority by one.
pub const AGING_SECONDS: f64 = 10.0;

/// Scheduling requests of a caller for a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SchedulingOptions {
    /// Priority; greater numbers go first.
    pub priority: i8,
    /// Deadline of the first token, in seconds on the caller's clock.
    pub deadline: Option<f64>,
    /// Fairness group: the prompts of a group together get the share of a single generation without a group.
    pub group: Option<u64>,
}

/// Position of a generation in the priority order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turn {
    /// Number of generations that arrived earlier.
    pub order: u64,
    /// Requests of the caller.
    pub wishes: SchedulingOptions,
    /// Virtual finish time of the prompt under equal sharing, in rows.
    tag: f64,
    /// Time of the last row, or of arrival.
    served: f64,
    /// Number of preemptions. Each raises the priority, so that the generation eventually completes.
    preemptions: u16,
}

impl Turn {
    /// Returns the priority for preemption, which waiting does not change.
    pub fn level(&self) -> i32 {
        i32::from(self.wishes.priority) + i32::from(self.preemptions)
    }

    /// Returns the priority for scheduling, which rises while waiting.
    fn level_at(&self, now: f64) -> i32 {
        let waited = ((now - self.served) / AGING_SECONDS).clamp(0.0, 1e6);
        self.level() + waited as i32
    }

    /// Returns the deadline, or infinity if it has passed: a late generation gets no preference.
    fn deadline_at(&self, now: f64) -> f64 {
        self.wishes.deadline.filter(|&deadline| deadline >= now).unwrap_or(f64::INFINITY)
    }

    /// Compares the order for prompts: higher priority, earlier deadline, earlier virtual finish time, older.
    pub fn before(&self, other: &Self, now: f64) -> Ordering {
        let levels = other.level_at(now).cmp(&self.level_at(now));
        let deadlines = || self.deadline_at(now).total_cmp(&other.deadline_at(now));
        let tags = || self.tag.total_cmp(&other.tag);
        levels.then_with(deadlines).then_with(tags).then_with(|| self.order.cmp(&other.order))
    }

    /// Compares the order for decoding: higher priority, longer wait, older.
    pub fn waits_before(&self, other: &Self, now: f64) -> Ordering {
        let levels = other.level_at(now).cmp(&self.level_at(now));
        let waits = || self.served.total_cmp(&other.served);
        levels.then_with(waits).then_with(|| self.order.cmp(&other.order))
    }

    /// Compares the order for preemption: higher priority and older generations stay.
    pub fn stays_before(&self, other: &Self) -> Ordering {
        other.level().cmp(&self.level()).then_with(|| self.order.cmp(&other.order))
    }

    /// Records that the generation had rows in a step.
    pub fn serve(&mut self, now: f64) {
        self.served = now;
    }

    /// Records that the generation was preempted.
    pub fn preempt(&mut self) {
        self.preemptions = self.preemptions.saturating_add(1);
    }
}

/// Weighted fair queueing of prompts. Each prompt completes at most one step later than if all groups with
/// prompts shared rows equally. A short prompt therefore overtakes a long one, but a long one is not
/// overtaken after its fair completion time.
#[derive(Clone, Debug, Default)]
pub struct FairTurns {
    came: u64,
    /// Virtual time: rows computed for a group that always has prompts.
    now_rows: f64,
    /// Virtual finish time of each group's last prompt.
    groups: BTreeMap<u64, f64>,
}

impl FairTurns {
    /// Registers a generation with `prompt_rows` rows of a prompt.
    pub fn arrive(&mut self, wishes: SchedulingOptions, prompt_rows: usize, now: f64) -> Turn {
        // Default: a group without prompts starts at the current virtual time.
        let before = wishes.group.and_then(|group| self.groups.get(&group).copied()).unwrap_or(0.0);
        let tag = before.max(self.now_rows) + prompt_rows as f64;
        if let Some(group) = wishes.group {
            self.groups.retain(|_, end| *end > self.now_rows);
            self.groups.insert(group, tag);
        }
        let order = self.came;
        self.came += 1;
        Turn { order, wishes, tag, served: now, preemptions: 0 }
    }

    /// Advances the virtual time by `prompt_rows` rows, shared by `groups` groups with prompts.
    pub(super) fn pass(&mut self, prompt_rows: usize, groups: usize) {
        self.now_rows += prompt_rows as f64 / groups.max(1) as f64;
    }
}
