//! Admission and preemption: carries out the decisions of [`nestling_core::schedule`].

use std::sync::Arc;

use super::Task;
use crate::model_core::ModelCore;
use crate::stored_pages::offer_kept;
use nestling_core::schedule::{Claim, GenerationPhase, Shortage, admit, victim};
use nestling_core::sync::whole;

/// Model and time of the step being planned, with the number of models that take turns.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanningContext<'a> {
    pub model: &'a Arc<ModelCore>,
    pub models: usize,
    /// Time of the plan, in seconds on the engine's clock.
    pub seconds: f64,
}

impl PlanningContext<'_> {
    pub fn is_of(&self, task: &Task) -> bool {
        Arc::ptr_eq(&task.model, self.model)
    }
}

/// Returns the page claims of a model's generations, with their task indices.
fn claims(tasks: &[Task], model: &Arc<ModelCore>) -> (Vec<usize>, Vec<Claim>) {
    let of_model =
        |(_, task): &(usize, &Task)| Arc::ptr_eq(&task.model, model) && !task.has_ended();
    let all = tasks.iter().enumerate().filter(of_model);
    all.map(|(index, task)| (index, task.claim())).unzip()
}

/// Starts or resumes generations that fit. Returns the shortage of the next one that does not, if any.
pub(super) fn begin(tasks: &mut [Task], now: PlanningContext<'_>) -> Option<Shortage> {
    let waits = |task: &Task| now.is_of(task) && task.standing != GenerationPhase::Running;
    if !tasks.iter().any(waits) {
        return None;
    }
    let (indices, claims) = claims(tasks, now.model);
    let free = now.model.pool.free_pages() + now.model.idle_pages();
    let admission = admit(&claims, free, now.model.running_max(), now.seconds);
    for index in admission.park {
        park(&mut tasks[indices[index]]);
    }
    for index in admission.begin {
        let task = &mut tasks[indices[index]];
        task.adopt();
        task.standing = GenerationPhase::Running;
    }
    admission.short
}

/// Preempts a generation so that task `needs` can continue. Returns false if there is no victim.
pub(super) fn preempt(tasks: &mut [Task], needs: usize) -> bool {
    let (indices, claims) = claims(tasks, &tasks[needs].model);
    let needs = indices.iter().position(|&index| index == needs);
    let leaves = needs.and_then(|needs| victim(&claims, needs));
    if let Some(leaves) = leaves {
        park(&mut tasks[indices[leaves]]);
    }
    leaves.is_some()
}

fn park(task: &mut Task) {
    tracing::debug!(pages = task.sequence.pages().len(), "preempted a generation");
    offer_kept(&task.model, &task.sequence);
    task.sequence.forget_computed(0);
    // A waiting generation only releases the pages of its session.
    if task.standing == GenerationPhase::Running {
        task.standing = GenerationPhase::Parked;
        task.turn.preempt();
        task.stats.preemptions += 1;
        whole(task.model.service.lock()).preemptions += 1;
    }
}
