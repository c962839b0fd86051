//! Planning of steps: the rows of the next batch.

use std::sync::Arc;

use super::Task;
use super::admission::{self, PlanningContext};
use super::prompt_rows::{RowWants, logit_rows_max};
use crate::sequence::Advance;
use nestling_core::batch::{Batch, Row, SequenceRef, StepOutputKind};
use nestling_core::kv_cache::PageCopy;
use nestling_core::schedule::{Candidate, GenerationPhase};

/// One generation's part of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// Index of the task.
    pub task: usize,
    /// Number of rows.
    pub rows: usize,
    /// Number of tokens computed before the step.
    pub computed_before: usize,
    /// True if a token is chosen after the last row.
    pub chooses: bool,
    /// True if a page is copied for it before the step.
    pub copies_page: bool,
}

/// A planned step with its pages allocated.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub batch: Batch,
    pub shares: Vec<Share>,
    pub copies: Vec<PageCopy>,
    /// Union of the outputs requested for the rows.
    wants: RowWants,
    /// Number of prompt rows with requested outputs.
    prompt_rows: usize,
}

impl Plan {
    /// Plans the next step of a model by its scheduler: a row per decoding generation, and prompt chunks in
    /// priority order.
    ///
    /// Returns `None` if no generation can continue.
    pub fn make(tasks: &mut [Task], now: PlanningContext<'_>) -> Option<Self> {
        let mut plan = Self::default();
        for index in ready(tasks, now, |task| task.alone) {
            let pending = tasks[index].sequence.pending().len();
            let rows = pending.min(now.model.scheduler().prompt_rows(0, now.models)).max(1);
            if plan.take(tasks, index, rows, now) {
                return Some(plan.of_kind(tasks));
            }
        }
        for (index, rows) in choose(tasks, now) {
            // A generation earlier in this list may just have preempted it.
            if tasks[index].standing != GenerationPhase::Running {
                continue;
            }
            plan.take(tasks, index, rows, now);
        }
        if plan.shares.is_empty() {
            plan.take_first_that_can(tasks, now);
        }
        (!plan.shares.is_empty()).then(|| plan.of_kind(tasks))
    }

    /// Plans the first generation that can run.
    ///
    /// If those chosen by the scheduler lack pages held by others, this prevents a deadlock.
    fn take_first_that_can(&mut self, tasks: &mut [Task], now: PlanningContext<'_>) {
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

    /// Adds up to `rows` rows of a task. Returns false if there are no pages for them.
    fn take(
        &mut self,
        tasks: &mut [Task],
        index: usize,
        rows: usize,
        now: PlanningContext<'_>,
    ) -> bool {
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

    /// Returns the output kind. The device returns tokens instead of logits if all generations decode
    /// greedily.
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

    /// Adds the rows of a task whose pages and states are allocated.
    fn add(&mut self, index: usize, taken: AllocatedRows, task: &Task) {
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

/// Rows with allocated pages and states.
struct AllocatedRows {
    rows: usize,
    computed_before: usize,
    advance: Advance,
}

/// Returns the tasks of a model that can continue, sorted so that victims of preemption come last.
fn ready(tasks: &[Task], now: PlanningContext<'_>, which: impl Fn(&Task) -> bool) -> Vec<usize> {
    let is_ready = |task: &Task| now.is_of(task) && task.is_ready() && which(task);
    let mut all: Vec<usize> = (0..tasks.len()).filter(|&index| is_ready(&tasks[index])).collect();
    all.sort_by(|a, b| tasks[*a].turn.stays_before(&tasks[*b].turn));
    all
}

/// Returns the tasks of the next step with their row counts, sorted so that victims of preemption come last.
fn choose(tasks: &[Task], now: PlanningContext<'_>) -> Vec<(usize, usize)> {
    // Tasks that must run alone have just failed to get pages.
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

/// Allocates pages and states for the next `rows` tokens of a task.
///
/// If a pool is full, sessions at rest are evicted first, then generations of lower priority or later arrival
/// are preempted. Their tokens are recomputed when needed.
fn take_pages(tasks: &mut [Task], index: usize, rows: usize) -> Option<AllocatedRows> {
    let model = Arc::clone(&tasks.get(index)?.model);
    let mut was_alone = false;
    loop {
        let task = tasks.get_mut(index)?;
        let computed_before = task.sequence.computed();
        let error = match task.sequence.advance(rows) {
            Ok(advance) => return Some(AllocatedRows { rows, computed_before, advance }),
            Err(error) => error,
        };
        if model.reclaim_idle() || admission::preempt(tasks, index) {
            continue;
        }
        // Other generations continue first. Generations on their way here and sessions being forked also hold
        // pages. Only a task that holds everything by itself can never continue.
        let task = tasks.get_mut(index)?;
        let alone = error.is_full_pool() && task.sequence.holds_all_that_is_taken();
        if alone && !was_alone {
            // Checked twice, since another thread may just have released pages.
            was_alone = true;
            continue;
        }
        if alone {
            task.failed = Some(error);
        }
        return None;
    }
}
