//! Which rows a step computes and which generations take part: decisions alone, without clocks, threads or pages, so that a simulation
//! runs the same code. Times are seconds on whatever clock the caller has. No decision changes what a generation says.

mod admission;
mod costs;
mod turn;

use std::collections::BTreeSet;

use crate::runner::PromptSteps;

pub use admission::{ANSWER_TOKENS, Admission, Claim, Shortage, Standing, admit, victim};
pub use costs::StepCosts;
pub use turn::{AGING_SECONDS, FairTurns, Turn, Wishes};

/// Prompt rows of the first step, before anything is known of the model's speed.
const PROMPT_ROWS_FIRST: usize = 64;

/// Rows below which smaller steps only cost throughput.
const PROMPT_ROWS_MIN: usize = 16;

/// Rows of a generation under way that count as decoding: the last token, and tokens that had to follow.
const DECODE_ROWS_MAX: usize = 32;

/// What a scheduler is to keep to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScheduleLimits {
    /// Most rows of a step.
    pub rows_max: usize,
    /// Seconds between two tokens that generations under way should not wait beyond for prompts of others.
    pub gap_seconds: f64,
    /// Seconds that any step may take.
    pub step_seconds: f64,
    /// What prompts cost: where experts stream, every step reads nearly all of them.
    pub prompt_steps: PromptSteps,
}

/// A generation that could have rows in the next step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its turn.
    pub turn: Turn,
    /// Tokens to be computed before its next one can be chosen.
    pub pending: usize,
    /// Whether it has said something already and only goes on.
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
    /// How many of its pending tokens.
    pub rows: usize,
}

/// Chooses the rows of steps, of one model.
#[derive(Clone, Debug)]
pub struct Scheduler {
    limits: ScheduleLimits,
    /// How long steps take.
    pub costs: StepCosts,
    /// Whose turn it is.
    pub turns: FairTurns,
    gap_in_force: f64,
}

impl Scheduler {
    /// One that knows nothing of its model.
    pub fn new(limits: ScheduleLimits) -> Self {
        let (costs, turns) = (StepCosts::default(), FairTurns::default());
        Self { limits, costs, turns, gap_in_force: limits.gap_seconds }
    }

    /// The gap that is kept to: that of the limits, or, where a step of the generations under way and the fewest prompt rows that pay
    /// takes longer, what that takes, as of the last step that had both.
    pub fn gap_in_force(&self) -> f64 {
        self.gap_in_force
    }

    /// So many prompt rows at most beside `decoding` rows, where the engine serves so many models by turns.
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
            // Default: before a step was measured, nothing shows that the target cannot be kept.
            let possible = self.costs.seconds(decoding + least).unwrap_or(0.0);
            self.gap_in_force = gap_seconds.max(possible * models.max(1) as f64);
        }
        let fitting = self.costs.rows_within(allowed).unwrap_or(PROMPT_ROWS_FIRST);
        fitting.saturating_sub(decoding).clamp(least, rest)
    }

    /// The rows of the next step, in the order of turns: one generation's pending rows for each that is under way, and
    /// of the others' prompts as many as fit in the time, cut evenly.
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
            // Two steps of the same length take no longer than a long and a short one.
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
