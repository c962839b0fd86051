//! Which rows the next step computes.

use std::sync::Arc;

use super::Task;
use super::admission::{self, Now};
use super::prompt_rows::{RowWants, logit_rows_max};
use crate::sequence::Advance;
use nestling_core::batch::{Batch, Row, SequenceRef, StepOutputKind};
use nestling_core::kv_cache::PageCopy;
use nestling_core::schedule::{Candidate, Standing};

/// One generation's part of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// Index of the task.
    pub task: usize,
    /// Rows of it.
    pub rows: usize,
    /// Tokens that it had computed before.
    pub computed_before: usize,
    /// Whether a token is chosen after its last row.
    pub chooses: bool,
    /// Whether a page is copied for it before the step.
    pub copies_page: bool,
}

/// A step, its pages taken.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub batch: Batch,
    pub shares: Vec<Share>,
    pub copies: Vec<PageCopy>,
    /// What is wanted of any row.
    wants: RowWants,
    /// Rows of prompts of which more than the next token is wanted.
    prompt_rows: usize,
}

impl Plan {
    /// The next step of a model, as its scheduler chooses: a row for every generation that decodes, and
    /// rows of prompts in their turn. None if no generation can go on.
    pub fn make(tasks: &mut [Task], now: Now<'_>) -> Option<Self> {
        let mut plan = Self::default();
        for index in ready(tasks, now, |task| task.alone) {
            let pending = tasks[index].sequence.pending().len();
            let rows = pending.min(now.model.scheduler().prompt_rows(0, now.models)).max(1);
            if plan.take(tasks, index, rows, now) {
                return Some(plan.of_kind(tasks));
            }
        }
        for (index, rows) in choose(tasks, now) {
            // One that stays before this one may just have taken its pages.
            if tasks[index].standing != Standing::Running {
                continue;
            }
            plan.take(tasks, index, rows, now);
        }
        if plan.shares.is_empty() {
            plan.take_first_that_can(tasks, now);
        }
        (!plan.shares.is_empty()).then(|| plan.of_kind(tasks))
    }

    /// Those whose turn it is lack what others hold: one of these goes on, or none ever would.
    fn take_first_that_can(&mut self, tasks: &mut [Task], now: Now<'_>) {
        let most = now.model.scheduler().prompt_rows(0, now.models).max(1);
        for index in ready(tasks, now, |_| true) {
            let rows = tasks[index].sequence.pending().len().min(most);
            if tasks[index].is_ready() && self.take(tasks, index, rows, now) {
                return;
            }
        }
    }

    fn of_kind(mut self, tasks: &[Task]) -> Self {
        self.batch.output = self.output_kind(tasks);
        self
    }

    /// Adds so many rows of a task, if there are pages for them.
    fn take(&mut self, tasks: &mut [Task], index: usize, rows: usize, now: Now<'_>) -> bool {
        let wants_many = tasks[index].prompt_rows.wants_many();
        let most = match wants_many {
            true => logit_rows_max(now.model.limits.vocab_size).saturating_sub(self.prompt_rows),
            false => rows,
        };
        let rows = rows.min(most);
        if rows == 0 {
            return false;
        }
        let Some(taken) = take_pages(tasks, index, rows) else { return false };
        if wants_many {
            self.prompt_rows += rows;
        }
        tasks[index].turn.serve(now.seconds);
        self.add(index, taken, &tasks[index]);
        true
    }

    /// Tokens instead of logits where every generation takes that with the highest.
    fn output_kind(&self, tasks: &[Task]) -> StepOutputKind {
        match (self.wants.hidden, self.wants.wants_logits()) {
            (true, false) => return StepOutputKind::Hidden,
            (true, true) => return StepOutputKind::HiddenAndLogits,
            (false, _) if self.wants.score => return StepOutputKind::Logits,
            (false, _) => {}
        }
        let choosing = self.shares.iter().filter(|share| share.chooses);
        let mut best = choosing.map(|share| tasks[share.task].answer.takes_best());
        match best.next().flatten() {
            Some(among) if best.all(|other| other == Some(among)) => StepOutputKind::Argmax(among),
            _ => StepOutputKind::Logits,
        }
    }

    /// Adds the rows of a task, whose pages and states have been taken already.
    fn add(&mut self, index: usize, taken: Taken, task: &Task) {
        let sequence = self.batch.sequences.len() as u32;
        let start = taken.computed_before;
        let tokens = task.sequence.tokens();
        let levels = task.model.levels_now(task.levels);
        let mut chooses = false;
        for (at, &token) in tokens.iter().enumerate().skip(start).take(taken.rows) {
            let wants = task.wants(at);
            self.wants.score |= wants.score;
            self.wants.hidden |= wants.hidden;
            self.wants.choice |= wants.choice;
            chooses = wants.choice;
            let (position, wants_logits) = (at as u32, wants.is_any());
            self.batch.rows.push(Row { token, position, sequence, wants_logits, levels });
        }
        let (pages, Advance { copy, states }) = (task.sequence.pages().to_vec(), taken.advance);
        self.batch.sequences.push(SequenceRef { pages, states });
        let copies_page = copy.is_some();
        self.copies.extend(copy);
        let (rows, computed_before) = (taken.rows, start);
        self.shares.push(Share { task: index, rows, computed_before, chooses, copies_page });
    }
}

/// Rows whose pages and states are there.
struct Taken {
    rows: usize,
    computed_before: usize,
    advance: Advance,
}

/// Tasks of a model that can go on, those that stay where others have to leave first.
fn ready(tasks: &[Task], now: Now<'_>, which: impl Fn(&Task) -> bool) -> Vec<usize> {
    let is_ready = |task: &Task| now.is_of(task) && task.is_ready() && which(task);
    let mut all: Vec<usize> = (0..tasks.len()).filter(|&index| is_ready(&tasks[index])).collect();
    all.sort_by(|a, b| tasks[*a].turn.stays_before(&tasks[*b].turn));
    all
}

/// Tasks to step, each with its number of rows; those that stay where others have to leave come first.
fn choose(tasks: &[Task], now: Now<'_>) -> Vec<(usize, usize)> {
    // Those that are to go alone have just found no pages.
    let ready = |task: &Task| now.is_of(task) && !task.alone && task.is_ready();
    let all: Vec<usize> = (0..tasks.len()).filter(|&index| ready(&tasks[index])).collect();
    let mut scheduler = now.model.scheduler();
    let candidates: Vec<Candidate> = all.iter().map(|&index| tasks[index].candidate()).collect();
    let chosen = scheduler.choose(&candidates, now.models, now.seconds);
    let mut chosen: Vec<(usize, usize)> =
        chosen.into_iter().map(|rows| (all[rows.index], rows.rows)).collect();
    chosen.sort_by(|(a, _), (b, _)| tasks[*a].turn.stays_before(&tasks[*b].turn));
    chosen
}

/// Takes the pages and states of the next `rows` tokens of a task. Where a pool is full, sessions at
/// rest lose theirs first, then generations of lower priority or younger ones; all compute them again when they need them.
fn take_pages(tasks: &mut [Task], index: usize, rows: usize) -> Option<Taken> {
    let model = Arc::clone(&tasks.get(index)?.model);
    let mut was_alone = false;
    loop {
        let task = tasks.get_mut(index)?;
        let computed_before = task.sequence.computed();
        let error = match task.sequence.advance(rows) {
            Ok(advance) => return Some(Taken { rows, computed_before, advance }),
            Err(error) => error,
        };
        if model.reclaim_idle() || admission::preempt(tasks, index) {
            continue;
        }
        // Others go on first; one that is on its way here, or a session that is
        // just being forked, holds pages too. Only alone it can never go on.
        let task = tasks.get_mut(index)?;
        let alone = error.is_full_pool() && task.sequence.holds_all_that_is_taken();
        if alone && !was_alone {
            // What another thread held may have come back just now.
            was_alone = true;
            continue;
        }
        if alone {
            task.failed = Some(error);
        }
        return None;
    }
}
