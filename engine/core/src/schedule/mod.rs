//! Scheduling: choice of the rows of a step and of the generations that take part. Decisions do not involve
//! clocks, threads or pages, so a simulation runs the same code. Times are seconds on the caller's clock. No
//! decision changes the output of a generation.

mod admission;
mod costs;
mod turn;

use std::collections::BTreeSet;

use crate::runner::PromptSteps;

pub use admission::{ANSWER_TOKENS, Admission, Claim, GenerationPhase, Shortage, admit, victim};
pub use costs::StepCosts;
pub use turn::{AGING_SECONDS, FairTurns, SchedulingOptions, Turn};

/// Number of prompt rows before the model's speed is known.
const PROMPT_ROWS_FIRST: usize = 64;

/// Minimum prompt rows; smaller steps only reduce throughput.
const PROMPT_ROWS_MIN: usize = 16;

/// Maximum rows of a running generation that count as decoding: the last token and forced tokens.
const DECODE_ROWS_MAX: usize = 32;

/// Limits of a scheduler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScheduleLimits {
    /// Maximum rows per step.
    pub rows_max: usize,
    /// Gap target: maximum seconds between two tokens of a running generation while prompts of others are
    /// computed.
    pub gap_seconds: f64,
    /// Maximum seconds of a step.
    pub step_seconds: f64,
    /// Cost model of prompts; if experts stream, each step reads nearly all of them.
    pub prompt_steps: PromptSteps,
}

/// A generation that can have rows in the next step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Priority order of the generation.
    pub turn: Turn,
    /// Number of tokens to compute before its next token can be chosen.
    pub pending: usize,
    /// True if the generation has produced output already.
    pub is_under_way: bool,
}

impl Candidate {
    fn decodes(&self) -> bool {
        self.pending == 1 || self.is_under_way && self.pending <= DECODE_ROWS_MAX
    }
}

/// Rows of one generation in the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Index of the candidate.
    pub index: usize,
    /// Number of its pending tokens to compute.
    pub rows: usize,
}

/// Scheduler of the rows of one model.
///
/// ```
/// use nestling_core::runner::PromptSteps;
/// use nestling_core::schedule::{ScheduleLimits, Scheduler};
///
/// let prompt_steps = PromptSteps::Timed;
/// let limits = ScheduleLimits { rows_max: 512, gap_seconds: 0.1, step_seconds: 1.0, prompt_steps };
/// let mut scheduler = Scheduler::new(limits);
/// assert_eq!(scheduler.prompt_rows(0, 1), 64); // before the first measurement
/// assert!(scheduler.choose(&[], 1, 0.0).is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct Scheduler {
    limits: ScheduleLimits,
    /// Cost model of steps.
    pub costs: StepCosts,
    /// Fair queueing of prompts.
    pub turns: FairTurns,
    gap_in_force: f64,
}

impl Scheduler {
    /// Creates a scheduler without measurements.
    pub fn new(limits: ScheduleLimits) -> Self {
        let (costs, turns) = (StepCosts::default(), FairTurns::default());
        Self { limits, costs, turns, gap_in_force: limits.gap_seconds }
    }

    /// Returns the gap target in force, in seconds. It exceeds the limit if a step of the running generations
    /// and the minimum prompt rows takes longer, as estimated for the last such step.
    pub fn gap_in_force(&self) -> f64 {
        self.gap_in_force
    }

    /// Returns the maximum number of prompt rows beside `decoding` rows, if the engine alternates between
    /// `models` models.
    pub fn prompt_rows(&mut self, decoding: usize, models: usize) -> usize {
        let ScheduleLimits { rows_max, gap_seconds, step_seconds, prompt_steps } = self.limits;
        let rest = rows_max.saturating_sub(decoding);
        let streams = prompt_steps == PromptSteps::Long;
        if streams && (decoding == 0 || !self.costs.is_known()) {
            return rest;
        }
        let least = match self.costs.paying_rows().filter(|_| streams) {
            Some(rows) => rows.max(PROMPT_ROWS_MIN),
            None if streams => rest,
            None => PROMPT_ROWS_MIN,
        };
        let least = least.min(rest);
        let allowed = match decoding {
            0 => step_seconds,
            _ => step_seconds.min(gap_seconds / models.max(1) as f64),
        };
        if decoding > 0 {
            // Default: before the first measurement, the target counts as achievable.
            let possible = self.costs.seconds(decoding + least).unwrap_or(0.0);
            self.gap_in_force = gap_seconds.max(possible * models.max(1) as f64);
        }
        let fitting = self.costs.rows_within(allowed).unwrap_or(PROMPT_ROWS_FIRST);
        fitting.saturating_sub(decoding).clamp(least, rest)
    }

    /// Chooses the rows of the next step. Running generations get all their pending rows, longest wait first.
    /// Prompts then get as many rows as fit in the time, in priority order and in steps of even size.
    pub fn choose(&mut self, candidates: &[Candidate], models: usize, now: f64) -> Vec<Rows> {
        let (mut decoding, mut prompts): (Vec<usize>, Vec<usize>) =
            (0..candidates.len()).partition(|&index| candidates[index].decodes());
        let in_turn = |a: &usize, b: &usize| candidates[*a].turn.before(&candidates[*b].turn, now);
        prompts.sort_by(in_turn);
        decoding.sort_by(|&a, &b| candidates[a].turn.waits_before(&candidates[b].turn, now));
        let mut chosen = Vec::new();
        let mut left = self.limits.rows_max;
        for index in decoding {
            let rows = candidates[index].pending.min(left);
            if rows > 0 {
                left -= rows;
                chosen.push(Rows { index, rows });
            }
        }
        let decoding = self.limits.rows_max - left;
        let all: usize = prompts.iter().map(|&index| candidates[index].pending).sum();
        if all == 0 || left == 0 {
            return chosen;
        }
        let mut rows = self.prompt_rows(decoding, models).max(1);
        if self.limits.prompt_steps == PromptSteps::Timed {
            // Two steps of equal length take no longer than a long and a short one.
            rows = all.div_ceil(all.div_ceil(rows));
        }
        let mut rows = rows.min(left);
        let groups = prompts.iter().map(|&index| candidates[index].turn.wishes.group);
        let named: BTreeSet<u64> = groups.clone().flatten().collect();
        let alone = groups.filter(Option::is_none).count();
        self.turns.pass(rows, named.len() + alone);
        for index in prompts {
            let taken = candidates[index].pending.min(rows);
            if taken == 0 {
                break;
            }
            rows -= taken;
            chosen.push(Rows { index, rows: taken });
        }
        chosen
    }
}

#[cfg(test)]
mod tests;
