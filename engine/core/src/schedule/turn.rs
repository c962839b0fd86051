//! Whose turn it is: priorities, deadlines and fair shares.

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Seconds without a row after which a generation counts as one priority higher.
pub const AGING_SECONDS: f64 = 10.0;

/// What a caller wishes for a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wishes {
    /// Those with a greater number go first.
    pub priority: i8,
    /// By when its first token is wanted, in seconds on the caller's clock.
    pub deadline: Option<f64>,
    /// Whose it is: prompts of one group share what a group without others would have alone.
    pub group: Option<u64>,
}

/// A generation's place among others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turn {
    /// How many came before it.
    pub order: u64,
    /// What was wished for it.
    pub wishes: Wishes,
    /// When its prompt would be done if all shared alike, in rows.
    tag: f64,
    /// When it last had a row, or came.
    served: f64,
    /// How often it lost its pages: each time it counts for more, so that it ends.
    preemptions: u16,
}

impl Turn {
    /// What it counts for where somebody has to leave. Waiting does not change it.
    pub fn level(&self) -> i32 {
        i32::from(self.wishes.priority) + i32::from(self.preemptions)
    }

    /// What it counts for where somebody goes first.
    fn level_at(&self, now: f64) -> i32 {
        let waited = ((now - self.served) / AGING_SECONDS).clamp(0.0, 1e6);
        self.level() + waited as i32
    }

    /// Its deadline, unless that is past: a generation that is late anyway goes when it is its turn.
    fn deadline_at(&self, now: f64) -> f64 {
        self.wishes.deadline.filter(|&deadline| deadline >= now).unwrap_or(f64::INFINITY)
    }

    /// Who goes first: the higher priority, the earlier deadline, the fairer turn, the older.
    pub fn before(&self, other: &Self, now: f64) -> Ordering {
        let levels = other.level_at(now).cmp(&self.level_at(now));
        let deadlines = || self.deadline_at(now).total_cmp(&other.deadline_at(now));
        let tags = || self.tag.total_cmp(&other.tag);
        levels.then_with(deadlines).then_with(tags).then_with(|| self.order.cmp(&other.order))
    }

    /// Who goes first of those that only go on: the higher priority, who waits longer, the older.
    pub fn waits_before(&self, other: &Self, now: f64) -> Ordering {
        let levels = other.level_at(now).cmp(&self.level_at(now));
        let waits = || self.served.total_cmp(&other.served);
        levels.then_with(waits).then_with(|| self.order.cmp(&other.order))
    }

    /// Who stays where one has to leave: the higher priority, the older.
    pub fn stays_before(&self, other: &Self) -> Ordering {
        other.level().cmp(&self.level()).then_with(|| self.order.cmp(&other.order))
    }

    /// It had rows.
    pub fn serve(&mut self, now: f64) {
        self.served = now;
    }

    /// It lost its pages.
    pub fn preempt(&mut self) {
        self.preemptions = self.preemptions.saturating_add(1);
    }
}

/// Fair turns of prompts (weighted fair queueing): each is done no later, but for one step, than if all groups that have prompts had
/// their rows computed side by side. So a short prompt passes a long one, and a long one is passed no more once that time has come.
#[derive(Clone, Debug, Default)]
pub struct FairTurns {
    came: u64,
    /// Rows that a group that always had some would have had computed.
    now_rows: f64,
    /// When the last prompt of each group is done.
    groups: BTreeMap<u64, f64>,
}

impl FairTurns {
    /// A generation comes, with so many rows of a prompt.
    pub fn arrive(&mut self, wishes: Wishes, prompt_rows: usize, now: f64) -> Turn {
        // Default: a group without prompts begins now.
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

    /// So many rows are computed while so many groups have prompts.
    pub(super) fn pass(&mut self, prompt_rows: usize, groups: usize) {
        self.now_rows += prompt_rows as f64 / groups.max(1) as f64;
    }
}
