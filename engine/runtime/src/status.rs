//! What an engine is doing, for whoever looks at it.

use crate::page_store::PageStoreStatus;
use crate::prefix::PrefixStatus;
use nestling_core::StreamStats;
use nestling_core::schedule::{Claim, Shortage, Standing};

/// What an engine, or one model of it, is doing; a moment ago.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ServiceStatus {
    /// Generations whose tokens are computed.
    pub running: usize,
    /// Generations that have not begun: their prompts and some of their answers do not fit yet.
    pub waiting: usize,
    /// Generations that lost their pages and wait until they are there again.
    pub parked: usize,
    /// Pages of keys and values.
    pub pages: PageStatus,
    /// Pages that the next of those that wait lacks.
    pub short: Option<Shortage>,
    /// How often a generation lost its pages to another.
    pub preemptions: u64,
    /// First tokens that came after their deadline.
    pub late: u64,
    /// Steps that were computed.
    pub steps: u64,
    /// Their rows: tokens of prompts and answers.
    pub rows: u64,
    /// The last one.
    pub last_step: StepStatus,
    /// What the steps did with experts.
    pub experts: ExpertTotals,
    /// How often beginnings of prompts were found that others had.
    pub prefixes: PrefixStatus,
    /// Pages on disk; of several models, those of each store once.
    pub page_store: PageStoreStatus,
    /// Seconds that generations under way wait for a token at most, as far as the model allows:
    /// [`crate::EngineOptions::gap_target`], or what the shortest step with a prompt beside them takes.
    pub gap_in_force: f64,
}

/// Pages by what they are held for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageStatus {
    /// All of them.
    pub total: usize,
    /// Those that can be taken.
    pub free: usize,
    /// Of these, those that keep what was computed in them until they are.
    pub idle: usize,
    /// Those of generations that run; what several share is counted for each.
    pub running: usize,
    /// Those of generations that wait.
    pub waiting: usize,
    /// Those that generations that run are going to take, as far as room is kept for their answers.
    pub promised: usize,
    /// Those of sessions at rest, which lose them where they are wanted; what several share is counted for each.
    pub resting: usize,
}

/// A step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct StepStatus {
    /// Its rows.
    pub rows: usize,
    /// Its generations.
    pub sequences: usize,
    /// How long it took, what was chosen and said included; 0 where there is no clock.
    pub seconds: f64,
}

/// What steps did with experts since their model was opened. A step counts once, however many generations share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExpertTotals {
    /// (Row, expert) pairs by the level that they were computed with.
    pub uses: [u64; 5],
    /// Hits, misses and reads; zero where experts are not streamed.
    pub streaming: StreamStats,
}

impl ExpertTotals {
    pub(crate) fn add(&mut self, uses: &[u64; 5], streaming: &StreamStats) {
        for (sum, uses) in self.uses.iter_mut().zip(uses) {
            *sum += uses;
        }
        self.streaming.add(streaming);
    }
}

impl PageStatus {
    /// Pages that a generation could begin with now.
    pub fn available(&self) -> usize {
        (self.free + self.resting).saturating_sub(self.promised)
    }
}

impl ServiceStatus {
    /// Counts the generations that there are now.
    pub(crate) fn recount(&mut self, claims: impl Iterator<Item = Claim>) {
        (self.running, self.waiting, self.parked) = (0, 0, 0);
        self.pages = PageStatus::default();
        claims.for_each(|claim| self.count(&claim));
    }

    fn count(&mut self, claim: &Claim) {
        if claim.standing == Standing::Running {
            self.pages.promised += claim.pages_wanted().saturating_sub(claim.held);
        }
        let (generations, held) = match claim.standing {
            Standing::Running => (&mut self.running, &mut self.pages.running),
            Standing::Waiting => (&mut self.waiting, &mut self.pages.waiting),
            Standing::Parked => (&mut self.parked, &mut self.pages.waiting),
        };
        *generations += 1;
        *held += claim.held;
    }

    /// Of several models: counts are sums, times the longest. Stores of pages, which models share, are left out.
    pub(crate) fn add(&mut self, other: &Self) {
        self.running += other.running;
        self.waiting += other.waiting;
        self.parked += other.parked;
        self.pages.total += other.pages.total;
        self.pages.free += other.pages.free;
        self.pages.idle += other.pages.idle;
        self.pages.running += other.pages.running;
        self.pages.waiting += other.pages.waiting;
        self.pages.promised += other.pages.promised;
        self.pages.resting += other.pages.resting;
        self.short = self.short.or(other.short);
        self.preemptions += other.preemptions;
        self.experts.add(&other.experts.uses, &other.experts.streaming);
        self.prefixes.add(&other.prefixes);
        self.late += other.late;
        self.steps += other.steps;
        self.rows += other.rows;
        if other.last_step.seconds >= self.last_step.seconds {
            self.last_step = other.last_step;
        }
        self.gap_in_force = self.gap_in_force.max(other.gap_in_force);
    }
}
