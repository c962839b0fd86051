//! Distribution of a step's outputs among its generations.
//!
//! Each generation scores its prompt rows and chooses its next token, on all threads if there are enough
//! logits.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Task;
use super::answer::{Outcome, RowOutput};
use super::plan::{Plan, Share};
use super::prompt_rows::{FoundRows, RowWants, Score};
use crate::event::{Event, HiddenRow, TokenEvent};
use nestling_core::error::EngineError;
use nestling_core::runner::StepOutput;
use nestling_cpu::threads::ThreadPool;
use nestling_formats::InternalError;

/// Minimum number of logits for waking threads to share the work.
const SHARED_LOGITS_MIN: usize = 1 << 16;

struct RowWork<'a> {
    task: &'a mut Task,
    /// Index of its share in the plan.
    share: usize,
    rows: FoundRows<'a>,
    next: Option<RowOutput<'a>>,
    /// Set if the step returned everything that its rows requested.
    is_whole: bool,
    outcome: Option<Result<Outcome, EngineError>>,
}

/// Rows of the outputs, in the order of the batch.
struct Rows<'a> {
    logits: std::slice::ChunksExactMut<'a, f32>,
    best: std::slice::Iter<'a, Option<u32>>,
    hidden: std::slice::ChunksExact<'a, f32>,
}

struct FoundRow<'a> {
    logits: Option<&'a mut [f32]>, // [vocab_size]
    best: Option<u32>,
    hidden: Option<&'a [f32]>, // [hidden_size]
}

impl<'a> Rows<'a> {
    fn next(&mut self) -> FoundRow<'a> {
        FoundRow {
            logits: self.logits.next(),
            best: self.best.next().copied().flatten(),
            hidden: self.hidden.next(),
        }
    }
}

/// Computes the outcome of a step for each share of the plan. An error of one generation does not affect
/// others.
pub(super) fn outcomes(
    tasks: &mut [Task],
    plan: &Plan,
    output: &mut StepOutput,
    pool: &ThreadPool,
) -> Vec<Result<Outcome, EngineError>> {
    let mut outcomes: Vec<Option<Result<Outcome, EngineError>>> =
        plan.shares.iter().map(|_| None).collect();
    for failure in output.failures.drain(..) {
        if let Some(outcome) = outcomes.get_mut(failure.sequence) {
            *outcome = Some(Err(failure.error));
        }
    }
    let is_shared = output.logits.len() >= SHARED_LOGITS_MIN;
    let mut works = share_out(tasks, plan, output);
    // Outputs of failed generations are not used, since they are not finite.
    works.retain(|work| work.is_whole && outcomes[work.share].is_none());
    let scores = works.iter_mut().flat_map(|work| &mut work.rows.scores);
    let mut scores: Vec<&mut Score<'_>> = scores.collect();
    for_each(pool, is_shared, &mut scores, &|score| score.compute());
    for_each(pool, is_shared, &mut works, &|work| work.compute());
    for work in works {
        outcomes[work.share] = work.outcome;
    }
    let missing = || InternalError::new("a step has what every row of it wants").into();
    outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| Err(missing()))).collect()
}

fn for_each<T: Send>(
    pool: &ThreadPool,
    is_shared: bool,
    items: &mut [T],
    job: &(dyn Fn(&mut T) + Sync),
) {
    match is_shared {
        true => pool.for_each_mut(items, &|_, item| job(item)),
        false => items.iter_mut().for_each(job),
    }
}

fn share_out<'a>(
    tasks: &'a mut [Task],
    plan: &Plan,
    output: &'a mut StepOutput,
) -> Vec<RowWork<'a>> {
    let rows = plan.batch.rows.iter().filter(|row| row.wants_logits).count();
    let hidden_size = output.hidden.len() / rows.max(1);
    let mut found = Rows {
        logits: output.logits.chunks_exact_mut(output.vocab_size.max(1)),
        best: output.best.iter(),
        hidden: output.hidden.chunks_exact(hidden_size.max(1)),
    };
    let mut tasks: Vec<Option<&mut Task>> = tasks.iter_mut().map(Some).collect();
    let mut works = Vec::new();
    for (index, share) in plan.shares.iter().enumerate() {
        let Some(task) = tasks.get_mut(share.task).and_then(Option::take) else { continue };
        works.push(RowWork::new(task, index, share, &mut found));
    }
    works
}

impl<'a> RowWork<'a> {
    fn new(task: &'a mut Task, index: usize, share: &Share, found: &mut Rows<'a>) -> Self {
        let (mut rows, mut next, mut is_whole) = (FoundRows::default(), None, true);
        for position in share.computed_before..share.computed_before + share.rows {
            let wants = task.wants(position);
            if !wants.is_any() {
                continue;
            }
            let FoundRow { logits, best, hidden } = found.next();
            if wants.hidden {
                let values = hidden.map(<[f32]>::to_vec);
                is_whole &= values.is_some();
                rows.hidden.extend(values.map(|values| HiddenRow { position, values }));
            }
            match (wants, logits, best) {
                (RowWants { score: true, .. }, Some(logits), _) => {
                    rows.scores.extend(task.score(position, logits));
                }
                (RowWants { choice: true, .. }, Some(logits), _) => {
                    next = Some(RowOutput::Logits(logits));
                }
                (RowWants { choice: true, .. }, None, Some(best)) => {
                    next = Some(RowOutput::Best(best));
                }
                (wants, ..) => is_whole &= !wants.wants_logits(),
            }
        }
        Self { task, share: index, rows, next, is_whole, outcome: None }
    }

    fn compute(&mut self) {
        // Text decoding and constraints are foreign code: a panic ends only its own generation.
        let outcome = catch_unwind(AssertUnwindSafe(|| self.outcome()));
        let panicked = EngineError::Panicked { what: "sampling and decoding its text" };
        self.outcome = Some(outcome.unwrap_or(Err(panicked)));
    }

    fn outcome(&mut self) -> Result<Outcome, EngineError> {
        let mut outcome = Outcome::default();
        for Score { token, found, .. } in self.rows.scores.drain(..) {
            let Some(found) = found else {
                return Err(InternalError::new("every score of a step is computed").into());
            };
            let found = found.map_err(EngineError::sample)?;
            let bytes = self.task.model.token_bytes(token);
            let event = TokenEvent { token, bytes, log_prob: Some(found.chosen), top: found.top };
            outcome.events.push(Event::PromptToken(event));
        }
        outcome.events.extend(self.rows.hidden.drain(..).map(Event::Hidden));
        if let Some(next) = self.next.take() {
            outcome.choice = Some(self.task.choose(next)?);
        }
        Ok(outcome)
    }
}
