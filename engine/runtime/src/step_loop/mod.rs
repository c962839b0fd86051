//! The step loop: computes one step after another, each for all generations of a model.
//!
//! It runs on a thread of the engine or, on platforms without threads, inside the calls that wait for events.
//! It alone modifies sequences of running generations.

mod admission;
mod answer;
mod found;
mod guard;
mod plan;
mod prompt_rows;
mod task;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::event::FinishReason;
use crate::model_core::ModelCore;
use crate::status::StepStatus;
use nestling_core::cancel::CancelToken;
use nestling_core::clock::Moment;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::PAGE_POSITIONS;
use nestling_core::runner::StepOutput;
use nestling_core::schedule::GenerationPhase;
use nestling_core::sync::{Condvar, Mutex, MutexGuard, whole};
use nestling_cpu::threads::ThreadPool;

use admission::PlanningContext;
pub(crate) use answer::{Answer, AnswerText};
pub(crate) use guard::{Guard, GuardParts};
use plan::Plan;
pub(crate) use prompt_rows::PromptRows;
pub(crate) use task::Task;

/// Interval at which an idle loop checks for tokens cancelled without a wake-up.
const CANCEL_POLL: Duration = Duration::from_millis(20);

/// State shared by the loop and the handles.
#[derive(Debug)]
pub(crate) struct LoopInbox {
    state: Mutex<InboxState>,
    changed: Condvar,
    /// Cancels the running step when the engine closes.
    stop: CancelToken,
    /// Start time of the engine, which is 0 on its clock.
    pub epoch: Moment,
}

#[derive(Default)]
struct InboxState {
    arrivals: VecDeque<Task>,
    /// Reserved places: generations on their way to the loop. `waiting` counts those in the loop that have
    /// not started.
    places: usize,
    waiting: usize,
    woken: bool,
    /// Number of turns requested by [`LoopInbox::settle`], and the last request completed.
    settle_asked: u64,
    settle_done: u64,
    /// Set once the loop has ended and no longer reads `arrivals`.
    ended: bool,
}

impl std::fmt::Debug for InboxState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InboxState({} arrivals)", self.arrivals.len())
    }
}

impl LoopInbox {
    pub(crate) fn new() -> Self {
        let state = Mutex::new(InboxState::default());
        Self { state, changed: Condvar::new(), stop: CancelToken::new(), epoch: Moment::now() }
    }

    /// Reserves a place in the queue. Returns the queue length as an error if it is at least `waiting_max`.
    pub(crate) fn place(self: &Arc<Self>, waiting_max: usize) -> Result<QueuePermit, usize> {
        let mut state = self.lock();
        let waiting = state.places + state.arrivals.len() + state.waiting;
        if waiting >= waiting_max {
            return Err(waiting);
        }
        state.places += 1;
        Ok(QueuePermit { inbox: Arc::clone(self) })
    }

    /// Returns the number of a model's generations that the loop has not taken yet.
    pub(crate) fn arrivals_of(&self, model: &Arc<ModelCore>) -> usize {
        let state = self.lock();
        state.arrivals.iter().filter(|task| Arc::ptr_eq(&task.model, model)).count()
    }

    /// Hands over a generation. It fails immediately if the loop has ended.
    pub(crate) fn send(&self, task: Task, place: QueuePermit) {
        // Released at return: the generation counts twice for a moment, but never zero times.
        let _place = place;
        let mut state = self.lock();
        if state.ended {
            drop(state);
            return task.fail(EngineError::EngineClosed);
        }
        state.arrivals.push_back(task);
        state.woken = true;
        drop(state);
        self.changed.notify_all();
    }

    /// Wakes an idle loop.
    pub(crate) fn wake(&self) {
        self.lock().woken = true;
        self.changed.notify_all();
    }

    /// Ends the loop within one layer.
    pub(crate) fn close(&self) {
        self.stop.cancel();
        self.wake();
    }

    /// Waits for a turn of the loop, which releases everything that ended before the call.
    pub(crate) fn settle(&self) {
        let mut state = self.lock();
        state.settle_asked += 1;
        state.woken = true;
        let asked = state.settle_asked;
        self.changed.notify_all();
        while state.settle_done < asked && !state.ended {
            state = whole(self.changed.wait(state));
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Takes the arrived generations. They count as waiting until the loop publishes new counts.
    fn arrivals(&self) -> VecDeque<Task> {
        let mut state = self.lock();
        state.waiting += state.arrivals.len();
        std::mem::take(&mut state.arrivals)
    }

    fn settled(&self, asked: u64) {
        let mut state = self.lock();
        if state.settle_done < asked {
            state.settle_done = asked;
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, InboxState> {
        whole(self.state.lock())
    }
}

/// A reserved place in the queue, released on drop.
#[derive(Debug)]
pub(crate) struct QueuePermit {
    inbox: Arc<LoopInbox>,
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        self.inbox.lock().places -= 1;
    }
}

/// Result of one turn of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoopProgress {
    /// A step was computed, or a generation ended.
    Worked,
    /// All generations, if any, wait for a reader or for pages. While there are some, the loop must poll for
    /// cancelled tokens.
    Idle { generations: usize },
    /// The engine was closed, and all generations have ended.
    Closed,
}

/// The loop with its generations, oldest first.
#[derive(Debug)]
pub(crate) struct StepLoop {
    inbox: Arc<LoopInbox>,
    tasks: Vec<Task>,
    /// Compute threads, also used for sampling.
    pool: Arc<ThreadPool>,
    epoch: Moment,
}

impl StepLoop {
    pub(crate) fn new(inbox: Arc<LoopInbox>, pool: Arc<ThreadPool>) -> Self {
        let epoch = inbox.epoch;
        Self { inbox, tasks: Vec::new(), pool, epoch }
    }

    pub(crate) fn run(mut self) {
        loop {
            let asked = self.inbox.lock().settle_asked;
            let turn = self.turn();
            self.inbox.settled(asked);
            match turn {
                LoopProgress::Worked => {}
                LoopProgress::Idle { generations } => self.wait(generations > 0),
                LoopProgress::Closed => return,
            }
        }
    }

    fn wait(&self, poll: bool) {
        let mut state = self.inbox.lock();
        if !state.woken && poll {
            let waited = self.inbox.changed.wait_timeout(state, CANCEL_POLL);
            state = whole(waited).0;
        } else {
            while !state.woken {
                state = whole(self.inbox.changed.wait(state));
            }
        }
        state.woken = false;
    }

    /// Runs one turn: at most one step per model.
    pub(crate) fn turn(&mut self) -> LoopProgress {
        if self.inbox.is_closed() {
            self.close();
            return LoopProgress::Closed;
        }
        let before = self.models();
        let mut worked = self.sweep();
        let models = self.models();
        for model in &models {
            worked |= self.step(model, models.len());
        }
        self.publish(before.iter().chain(&models));
        if worked {
            LoopProgress::Worked
        } else {
            LoopProgress::Idle { generations: self.tasks.len() }
        }
    }

    /// Returns the models with generations, each once.
    fn models(&self) -> Vec<Arc<ModelCore>> {
        let mut models: Vec<Arc<ModelCore>> = Vec::new();
        for task in &self.tasks {
            if !models.iter().any(|model| Arc::ptr_eq(model, &task.model)) {
                models.push(Arc::clone(&task.model));
            }
        }
        models
    }

    /// Takes arrivals, and ends generations that are cancelled or have nothing to compute. Returns true if
    /// any ended.
    pub(crate) fn sweep(&mut self) -> bool {
        self.tasks.extend(self.inbox.arrivals());
        let before = self.tasks.len();
        for task in self.tasks.extract_if(.., |task| task.cancel.is_cancelled()) {
            task.finish(FinishReason::Cancelled);
        }
        self.end_done();
        self.tasks.len() < before
    }

    /// Computes one step of a model. Returns true if anything changed.
    fn step(&mut self, model: &Arc<ModelCore>, models: usize) -> bool {
        let started = Moment::now();
        let now = PlanningContext { model, models, seconds: started.seconds_since(self.epoch) };
        let short = admission::begin(&mut self.tasks, now);
        whole(model.service.lock()).short = short;
        let Some(plan) = Plan::make(&mut self.tasks, now) else {
            // A generation that can never fit has failed.
            return self.end_done();
        };
        let output = self.compute(model, &plan);
        match output {
            Ok(mut output) => {
                self.advance(&plan, &mut output);
                let seconds = Moment::now().seconds_since(started);
                let (rows, sequences) = (plan.batch.rows.len(), plan.shares.len());
                model.note_step(StepStatus { rows, sequences, seconds }, &output.stats);
                if let Ok(mut runner) = model.lock_runner() {
                    runner.recycle(output);
                }
            }
            Err(error) => self.roll_back(&plan, error),
        }
        self.end_done();
        true
    }

    fn compute(&self, model: &ModelCore, plan: &Plan) -> Result<StepOutput, EngineError> {
        let members = plan.shares.iter().filter_map(|share| self.tasks.get(share.task));
        let tokens = members.map(|task| &task.cancel).chain([&self.inbox.stop]);
        let cancel = CancelToken::any(tokens);
        let mut runner = model.lock_runner()?;
        let started = Moment::now();
        let computed = catch_unwind(AssertUnwindSafe(|| {
            for copy in &plan.copies {
                runner.copy_page(copy.source, copy.destination)?;
            }
            runner.step_blocking(&plan.batch, &cancel)
        }));
        if let Ok(Ok(output)) = &computed {
            let seconds = Moment::now().seconds_since(started);
            model.observe(&plan.batch, &output.stats, seconds);
        }
        if let Ok(Err(error)) = &computed {
            // A lost device takes weights and KV cache with it. After a violated internal invariant, the
            // state is unknown.
            if matches!(error, EngineError::DeviceLost(_)) || error.internal().is_some() {
                model.mark_broken();
            }
        }
        computed.unwrap_or_else(|_| {
            // After a panic the runner's state is unknown, so it is not used again.
            model.mark_broken();
            Err(EngineError::ModelBroken)
        })
    }

    /// Delivers the outcomes to the generations.
    ///
    /// Events are sent only on this thread: a waker may drop the last handle of the engine, which joins the
    /// other threads.
    fn advance(&mut self, plan: &Plan, output: &mut StepOutput) {
        let outcomes = found::outcomes(&mut self.tasks, plan, output, &self.pool);
        for (share, outcome) in plan.shares.iter().zip(outcomes) {
            let Some(task) = self.tasks.get_mut(share.task) else { continue };
            match outcome {
                Ok(outcome) => task.accept(share.rows, &output.stats, outcome),
                Err(error) => task.reject(error),
            }
        }
    }

    /// Undoes a failed step.
    ///
    /// If the cause is unknown, each generation of the step is then computed alone to find the one at fault.
    fn roll_back(&mut self, plan: &Plan, error: EngineError) {
        let alone = plan.shares.len() == 1;
        let cancelled = matches!(error, EngineError::Cancelled);
        let mut error = Some(error);
        for share in &plan.shares {
            let Some(task) = self.tasks.get_mut(share.task) else { continue };
            task.sequence.forget_computed(share.computed_before);
            if cancelled {
                continue;
            }
            if share.copies_page {
                // The page copied on write belongs to this sequence by then, but may lack the copied
                // contents.
                let whole = share.computed_before / PAGE_POSITIONS * PAGE_POSITIONS;
                task.sequence.forget_computed(whole);
            }
            task.alone = true;
            if let (true, Some(error)) = (alone, error.take()) {
                task.failed = Some(error);
            }
        }
    }

    /// Publishes the counts of the models.
    fn publish<'a>(&self, models: impl Iterator<Item = &'a Arc<ModelCore>>) {
        for model in models {
            let of_model = self.tasks.iter().filter(|task| Arc::ptr_eq(&task.model, model));
            whole(model.service.lock()).recount(of_model.map(Task::claim));
        }
        let waits = |task: &&Task| task.standing == GenerationPhase::Waiting;
        self.inbox.lock().waiting = self.tasks.iter().filter(waits).count();
    }

    fn end_done(&mut self) -> bool {
        let before = self.tasks.len();
        for task in self.tasks.extract_if(.., |task| task.done.is_some() || task.failed.is_some()) {
            task.end();
        }
        self.tasks.len() < before
    }

    fn close(&mut self) {
        let arrivals = {
            let mut state = self.inbox.lock();
            state.ended = true;
            self.inbox.changed.notify_all();
            std::mem::take(&mut state.arrivals)
        };
        for task in self.tasks.drain(..).chain(arrivals) {
            task.fail(EngineError::EngineClosed);
        }
    }
}

impl Drop for StepLoop {
    /// Ends all generations, so that no reader waits forever.
    fn drop(&mut self) {
        self.close();
    }
}
