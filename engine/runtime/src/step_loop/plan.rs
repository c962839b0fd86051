//! Which rows the next step computes.

use std::sync::Arc;

use super::Task;
use crate::model_core::ModelCore;
use crate::sequence::Advance;
use nestling_core::batch::{Batch, Row, SequenceRef, StepOutputKind};
use nestling_core::kv_cache::PageCopy;

/// One generation's part of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// Index of the task.
    pub task: usize,
    /// Rows of it.
    pub rows: usize,
    /// Tokens that it had computed before.
    pub computed_before: usize,
    /// Whether its last row wants logits.
    pub wants_logits: bool,
    /// Whether a page is copied for it before the step.
    pub copies_page: bool,
}

/// A step, its pages taken.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub batch: Batch,
    pub shares: Vec<Share>,
    pub copies: Vec<PageCopy>,
}

impl Plan {
    /// The next step of a model: a row for every generation that decodes, and the rest of the
    /// rows for prompts, oldest first. None if no generation can go on.
    pub fn make(tasks: &mut [Task], model: &Arc<ModelCore>, turn: u64) -> Option<Self> {
        unpark(tasks, model);
        let mut plan = Self::default();
        for (index, rows) in choose(tasks, model) {
            // An older generation may just have taken this one's pages.
            if tasks[index].parked {
                continue;
            }
            if let Some(taken) = take_pages(tasks, index, rows) {
                tasks[index].turn = turn;
                plan.add(index, taken, &tasks[index]);
            }
        }
        plan.batch.output = plan.output_kind(tasks);
        (!plan.shares.is_empty()).then_some(plan)
    }

    /// Tokens instead of logits where every generation takes that with the highest.
    fn output_kind(&self, tasks: &[Task]) -> StepOutputKind {
        let wanting = self.shares.iter().filter(|share| share.wants_logits);
        let mut best = wanting.map(|share| tasks[share.task].answer.sampler.takes_best());
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
        let wants_logits = start + taken.rows == tokens.len() && task.wants_logits();
        let last = taken.rows - 1;
        let levels = task.model.levels_now(task.levels);
        let chosen = &tokens[start..start + taken.rows];
        self.batch.rows.extend(chosen.iter().enumerate().map(|(offset, &token)| Row {
            token,
            position: (start + offset) as u32,
            sequence,
            wants_logits: wants_logits && offset == last,
            levels,
        }));
        let (pages, Advance { copy, states }) = (task.sequence.pages().to_vec(), taken.advance);
        self.batch.sequences.push(SequenceRef { pages, states });
        let copies_page = copy.is_some();
        self.copies.extend(copy);
        let (rows, computed_before) = (taken.rows, start);
        self.shares.push(Share { task: index, rows, computed_before, wants_logits, copies_page });
    }
}

/// Rows whose pages and states are there.
struct Taken {
    rows: usize,
    computed_before: usize,
    advance: Advance,
}

/// Tasks to step, oldest first, each with its number of rows.
fn choose(tasks: &[Task], model: &Arc<ModelCore>) -> Vec<(usize, usize)> {
    let ready = |task: &Task| Arc::ptr_eq(&task.model, model) && task.is_ready();
    let all: Vec<usize> = (0..tasks.len()).filter(|&index| ready(&tasks[index])).collect();
    if let Some(&index) = all.iter().find(|&&index| tasks[index].alone) {
        let pending = tasks[index].sequence.pending().len();
        return vec![(index, pending.min(model.prompt_rows()))];
    }
    let pending = |index: usize| tasks[index].sequence.pending().len();
    let mut decoding: Vec<usize> = all.iter().copied().filter(|&i| pending(i) == 1).collect();
    // Where there are more than a step takes, those that waited longest go first.
    decoding.sort_by_key(|&index| (tasks[index].turn, index));
    decoding.truncate(model.rows_max());
    let mut prompt_rows = model.prompt_rows().min(model.rows_max() - decoding.len());
    let mut chosen: Vec<(usize, usize)> = decoding.into_iter().map(|index| (index, 1)).collect();
    for index in all.into_iter().filter(|&index| pending(index) > 1) {
        let rows = pending(index).min(prompt_rows);
        if rows == 0 {
            break;
        }
        prompt_rows -= rows;
        chosen.push((index, rows));
    }
    chosen.sort_unstable();
    chosen
}

/// Takes the pages and states of the next `rows` tokens of a task. Where a pool is full, sessions at
/// rest lose theirs first, then younger generations; both compute them again when they need them.
fn take_pages(tasks: &mut [Task], index: usize, rows: usize) -> Option<Taken> {
    let (older, rest) = tasks.split_at_mut(index);
    let (task, younger) = rest.split_first_mut()?;
    let computed_before = task.sequence.computed();
    let mut was_alone = false;
    loop {
        match task.sequence.advance(rows) {
            Ok(advance) => return Some(Taken { rows, computed_before, advance }),
            Err(_) if task.model.reclaim_idle() || preempt(younger, &task.model) => {}
            Err(_) if preempt_paused(older, &task.model) => {}
            Err(error) => {
                // Older generations go on first; one that is on its way here, or a session that is
                // just being forked, holds pages too. Only alone it can never go on.
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
    }
}

fn holds_pages(task: &Task, model: &Arc<ModelCore>) -> bool {
    Arc::ptr_eq(&task.model, model) && !task.sequence.pages().is_empty()
}

/// Takes the pages of the youngest generation that has any.
fn preempt(tasks: &mut [Task], model: &Arc<ModelCore>) -> bool {
    park(tasks.iter_mut().rev().find(|task| holds_pages(task, model)))
}

/// Takes the pages of a generation whose events nobody reads: its reader may be waiting for the
/// one that needs them.
fn preempt_paused(tasks: &mut [Task], model: &Arc<ModelCore>) -> bool {
    let paused = |task: &Task| holds_pages(task, model) && !task.buffer.has_room();
    park(tasks.iter_mut().rev().find(|task| paused(task)))
}

fn park(task: Option<&mut Task>) -> bool {
    // Default: there is nothing to preempt.
    let Some(task) = task else { return false };
    tracing::debug!(pages = task.sequence.pages().len(), "preempted a generation");
    task.sequence.forget_computed(0);
    task.parked = true;
    true
}

/// Lets preempted generations go on where they fit, or where nobody older could use the pages.
fn unpark(tasks: &mut [Task], model: &Arc<ModelCore>) {
    let mut free = model.pool.free_pages();
    let mut others = false;
    let can_go_on = |task: &Task| Arc::ptr_eq(&task.model, model) && task.buffer.has_room();
    for task in tasks.iter_mut().filter(|task| can_go_on(task)) {
        let wanted = task.sequence.pages_wanted();
        if task.parked && (!others || wanted <= free) {
            task.parked = false;
            free = free.saturating_sub(wanted);
        }
        others = true;
    }
}
