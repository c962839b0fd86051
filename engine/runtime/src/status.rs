//! Status of an engine and its models, for monitoring.

use crate::page_store::PageStoreStatus;
use crate::prefix::PrefixStatus;
use nestling_core::StreamStats;
use nestling_core::schedule::{Claim, GenerationPhase, Shortage};

/// Recent activity of an engine or of one model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ServiceStatus {
    /// Generations that are running.
    pub running: usize,
    /// Generations that have not started, for lack of pages for their prompts and part of their outputs.
    pub waiting: usize,
    /// Generations that were preempted and wait for pages.
    pub parked: usize,
    /// KV pages.
    pub pages: PageStatus,
    /// Pages missing for the next waiting generation.
    pub short: Option<Shortage>,
    /// Number of preemptions.
    pub preemptions: u64,
    /// First tokens produced after their deadline.
    pub late: u64,
    /// Steps computed.
    pub steps: u64,
    /// Rows computed: tokens of prompts and outputs.
    pub rows: u64,
    /// The last step.
    pub last_step: StepStatus,
    /// Expert usage of all steps.
    pub experts: ExpertTotals,
    /// Hits of shared prefixes.
    pub prefixes: PrefixStatus,
    /// Page stores on disk. Models that share a store count it once.
    pub page_store: PageStoreStatus,
    /// Gap target in force, in seconds: the maximum wait between two tokens of a running generation. It is
    /// [`crate::EngineOptions::gap_target`], or the duration of the shortest step with a prompt chunk if that
    /// is longer.
    pub gap_in_force: f64,
    /// Number of lost ranks that were replaced.
    pub ranks_replaced: u64,
}

/// KV pages by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageStatus {
    /// All pages.
    pub total: usize,
    /// Free pages.
    pub free: usize,
    /// Idle pages: free pages whose contents can still be found.
    pub idle: usize,
    /// Pages of running generations. A shared page counts once for each.
    pub running: usize,
    /// Pages of waiting and parked generations.
    pub waiting: usize,
    /// Pages that running generations are still going to take, as far as space is reserved for their outputs.
    pub promised: usize,
    /// Pages of sessions at rest, released on demand. A shared page counts once for each session.
    pub resting: usize,
}

/// One step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct StepStatus {
    /// Number of rows.
    pub rows: usize,
    /// Number of generations.
    pub sequences: usize,
    /// Duration in seconds, including sampling and output. 0 if no clock is available.
    pub seconds: f64,
}

/// Expert usage since the model was opened. A step shared by several generations counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExpertTotals {
    /// (Row, expert) pairs by the level used, in the order of `Level::ALL`.
    pub uses: [u64; 5],
    /// Hits, misses and reads. Zero if experts are not streamed.
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
    /// Returns the number of pages available to a new generation.
    pub fn available(&self) -> usize {
        (self.free + self.resting).saturating_sub(self.promised)
    }
}

impl ServiceStatus {
    pub(crate) fn recount(&mut self, claims: impl Iterator<Item = Claim>) {
        (self.running, self.waiting, self.parked) = (0, 0, 0);
        self.pages = PageStatus::default();
        claims.for_each(|claim| self.count(&claim));
    }

    fn count(&mut self, claim: &Claim) {
        if claim.standing == GenerationPhase::Running {
            self.pages.promised += claim.pages_wanted().saturating_sub(claim.held);
        }
        let (generations, held) = match claim.standing {
            GenerationPhase::Running => (&mut self.running, &mut self.pages.running),
            GenerationPhase::Waiting => (&mut self.waiting, &mut self.pages.waiting),
            GenerationPhase::Parked => (&mut self.parked, &mut self.pages.waiting),
        };
        *generations += 1;
        *held += claim.held;
    }

    /// Adds the status of another model: counts are summed, times take the maximum.
    ///
    /// `page_store` is left unchanged, since models share stores.
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
        self.ranks_replaced += other.ranks_replaced;
        self.gap_in_force = self.gap_in_force.max(other.gap_in_force);
    }
}
