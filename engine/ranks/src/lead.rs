//! The runner of rank 0, which the step loop calls as if there were no other ranks.

use std::mem;
use std::sync::Arc;

use nestling_core::batch::Batch;
use nestling_core::cancel::CancelToken;
use nestling_core::error::{EngineError, ErrorClass};
use nestling_core::expert_memory::ExpertMemory;
use nestling_core::group::{Failure, Group, RankError};
use nestling_core::kv_cache::PageId;
use nestling_core::recurrent::StateId;
use nestling_core::replicas::Replicas;
use nestling_core::routing_recorder::RoutingRecorder;
use nestling_core::runner::{ModelRunner, RunnerLimits, StepFuture, StepOutput};
use nestling_formats::Invariant;
use nestling_import::ModelConfig;

use crate::command::{Command, Order, Report, encode, gather_page, settle};
use crate::mover::{ReplicaMover, adopt, finish, prepare};
use crate::rank_thread::FollowerThread;
use crate::recovery::{Loss, Recovery};
use crate::written::WrittenMemory;

/// Runner of rank 0. Closes the other ranks when it is dropped.
pub struct LeadRunner {
    runner: Box<dyn ModelRunner>,
    group: Arc<dyn Group>,
    /// Budget of the experts of all ranks, if they are streamed.
    memory: Option<Arc<ExpertMemory>>,
    /// Number of ranks that share one budget of experts.
    sharing: u64,
    /// Threads of the other ranks, if they are of this process and are not replaced.
    threads: Vec<FollowerThread>,
    /// Replacement of lost ranks, if the others are threads that can be started again.
    recovery: Option<Recovery>,
    /// Pages and states that a replacement needs.
    written: WrittenMemory,
    /// Budget of the experts of one rank in bytes: the one in force, if it was changed, and the one of the last order, if its
    /// command has not ended yet.
    expert_share: Option<u64>,
    ordered_share: Option<u64>,
    mover: ReplicaMover,
    /// Number of replaced ranks that no step has reported yet.
    replaced: u64,
}

impl LeadRunner {
    /// Wraps the runner of rank 0. All ranks share one budget of experts.
    pub fn new(runner: Box<dyn ModelRunner>, group: Arc<dyn Group>) -> Self {
        let memory = runner.expert_memory().map(|_| Arc::new(ExpertMemory::new()));
        let sharing = group.share().ranks as u64;
        Self {
            runner,
            group,
            memory,
            sharing,
            threads: Vec::new(),
            recovery: None,
            written: WrittenMemory::default(),
            expert_share: None,
            ordered_share: None,
            mover: ReplicaMover::default(),
            replaced: 0,
        }
    }

    /// Gives each rank the whole budget of experts: its memory is its own.
    #[must_use]
    pub fn with_separate_memory(mut self) -> Self {
        self.sharing = 1;
        self
    }

    /// Joins the threads of the other ranks when the model is closed.
    #[must_use]
    pub fn with_threads(mut self, threads: Vec<FollowerThread>) -> Self {
        self.threads = threads;
        self
    }

    /// Replaces ranks that are lost, and continues the interrupted call.
    #[must_use]
    pub(crate) fn with_recovery(mut self, recovery: Recovery) -> Self {
        self.recovery = Some(recovery);
        self
    }

    /// Tells the other ranks what to do next.
    fn order(&mut self, command: Command) -> Result<(), EngineError> {
        self.recovery.as_ref().map_or(Ok(()), Recovery::check)?;
        let memory = self.memory.as_ref();
        let wanted = memory.and_then(|memory| memory.take_wanted()).map(|all| all / self.sharing);
        self.ordered_share = wanted.or(self.ordered_share);
        let order = Order {
            command,
            expert_budget: self.ordered_share,
            // Default: resident experts are not evicted.
            shed_bytes: memory.map_or(0, |memory| memory.take_shed().div_ceil(self.sharing)),
        };
        order.set_expert_memory(&*self.runner);
        self.group.broadcast(&encode(&order)?)?;
        Ok(())
    }

    /// Agrees on the outcome, and returns the result with the reports of all ranks.
    fn settle<T>(
        &mut self,
        result: Result<T, EngineError>,
        report: impl FnOnce(&T) -> Report,
    ) -> Result<(T, Vec<Report>), EngineError> {
        // After a loss, the next order repeats the budget.
        let settled: Result<(T, Vec<Report>), _> = settle(&*self.group, result, report)?;
        let ordered = self.ordered_share.take();
        let settled = settled?;
        self.expert_share = ordered.or(self.expert_share);
        if let Some(memory) = &self.memory {
            let held = settled.1.iter().map(|report| report.expert_bytes);
            memory.set_used(held.fold(0, u64::saturating_add));
        }
        Ok(settled)
    }

    fn expert_bytes(&self) -> u64 {
        // Default: resident experts are not counted.
        self.runner.expert_memory().map_or(0, |memory| memory.used_bytes())
    }

    /// Runs a command on all ranks that only changes state, and repeats it after the loss of a rank.
    fn on_all(
        &mut self,
        command: &dyn Fn() -> Command,
        own: &dyn Fn(&mut dyn ModelRunner) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        loop {
            match self.on_all_once(command(), own) {
                Ok(()) => return Ok(()),
                Err(error) => self.recover(error)?,
            }
        }
    }

    fn on_all_once(
        &mut self,
        command: Command,
        own: &dyn Fn(&mut dyn ModelRunner) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        self.order(command)?;
        let done = own(&mut *self.runner);
        let expert_bytes = self.expert_bytes();
        self.settle(done, |()| Report { expert_bytes, ..Report::default() })?;
        Ok(())
    }

    /// Reads a page of which each rank holds some heads.
    fn gather_parts(&mut self, page: PageId) -> Result<Vec<u8>, EngineError> {
        self.order(Command::ReadPage { page })?;
        let part = self.runner.read_page(page);
        let expert_bytes = self.expert_bytes();
        let (part, _) = self.settle(part, |_| Report { expert_bytes, ..Report::default() })?;
        let parts = gather_page(&*self.group, part)?;
        let pages = self.runner.divided_pages().invariant("pages stay divided")?;
        pages.join(&parts)
    }

    /// Returns the experts of which every rank holds a replica, or `None` if the ranks hold none and have no memory for any.
    pub fn current_replicas(&mut self) -> Option<&Replicas> {
        self.runner.replicas().map(|own| own.placement().replicas())
    }

    /// Exchanges the experts of which every rank holds a replica. All ranks use the new set from the next step on, or all
    /// keep the old one; a set that lacks some of its experts may be in force if loading them failed.
    ///
    /// # Errors
    /// Fails if the ranks hold no replicas, or the set has unknown experts or more of a layer than the ranks have memory
    /// for. Fails with the error of a rank that cannot load an expert, or with [`EngineError::Rank`] if one was lost.
    pub fn move_replicas(&mut self, replicas: &Replicas) -> Result<(), EngineError> {
        // Default: a runner without replicas refuses the set.
        let current = self.current_replicas().cloned().unwrap_or_default();
        // Replicas that leave are released before others are loaded.
        let kept = current.shared_with(replicas);
        if kept != current {
            self.replicate(&kept)?;
        }
        self.replicate(replicas)
    }

    fn replicate(&mut self, replicas: &Replicas) -> Result<(), EngineError> {
        loop {
            match self.replicate_once(replicas) {
                Ok(()) => return Ok(()),
                Err(error) => self.recover(error)?,
            }
        }
    }

    fn replicate_once(&mut self, replicas: &Replicas) -> Result<(), EngineError> {
        self.order(Command::Replicate(replicas.clone()))?;
        let prepared = prepare(&mut *self.runner, replicas);
        let expert_bytes = self.expert_bytes();
        let settled = self.settle(prepared, |()| Report { expert_bytes, ..Report::default() });
        finish(&mut *self.runner, settled.is_ok());
        settled.map(|_| ())
    }

    /// Moves replicas between two steps if others are used more.
    fn move_by_use(&mut self) {
        let better = self.runner.replicas().and_then(|own| self.mover.after_step(own.placement()));
        // Default: no choice is due, or the set in force is good.
        let Some(better) = better else { return };
        if let Err(error) = self.move_replicas(&better) {
            // The ranks still agree on a set, or the next call fails as well.
            self.mover.stop();
            tracing::warn!("replicas of experts are not moved any more: {error}");
        }
    }

    /// Computes a step, and repeats it after the loss of a rank.
    async fn run(
        &mut self,
        batch: &Batch,
        cancel: &CancelToken,
    ) -> Result<StepOutput, EngineError> {
        self.move_by_use();
        loop {
            match self.run_once(batch, cancel).await {
                Ok(mut output) => {
                    output.stats.ranks_replaced = mem::take(&mut self.replaced);
                    let has_states = self.runner.limits().states > 0;
                    self.written.mark_step(batch, has_states);
                    return Ok(output);
                }
                // The interrupted step may have overwritten the states that it read.
                Err(error) if overwrites_states(batch) => return Err(error),
                Err(error) => self.recover(error)?,
            }
        }
    }

    async fn run_once(
        &mut self,
        batch: &Batch,
        cancel: &CancelToken,
    ) -> Result<StepOutput, EngineError> {
        self.order(Command::Step(batch.clone()))?;
        let result = self.runner.step(batch, cancel).await;
        let expert_bytes = self.expert_bytes();
        let (mut output, reports) =
            self.settle(result, |output| Report { stats: output.stats, expert_bytes })?;
        let own = self.group.share().rank;
        for (_, report) in reports.iter().enumerate().filter(|(rank, _)| *rank != own) {
            output.stats.add_rank(&report.stats);
        }
        Ok(output)
    }

    /// Rebuilds the group after the loss of a rank, as often as ranks are lost meanwhile. No other call sees a group that
    /// is not whole.
    ///
    /// # Errors
    /// `error` itself, if it is no loss or ranks are not replaced, and [`RankError::NotReplaced`].
    fn recover(&mut self, error: EngineError) -> Result<(), EngineError> {
        let mut error = error;
        loop {
            let (EngineError::Rank(RankError::Lost { rank, cause }), Some(recovery)) =
                (&error, &mut self.recovery)
            else {
                return Err(error);
            };
            let loss = Loss { rank: *rank, cause: *cause };
            if self.runner.divided_pages().is_some() {
                return Err(recovery.give_up(loss, heads_lost(*rank)));
            }
            let rebuilt = recovery.rebuild(loss, self.expert_share);
            match rebuilt.and_then(|()| self.restore(loss)) {
                Ok(()) => return Ok(()),
                Err(next) => error = next,
            }
        }
    }

    /// Gives replacements the budget of experts, the pages and the states.
    fn restore(&mut self, loss: Loss) -> Result<(), EngineError> {
        let ranks = self.recovery.as_ref().map(|recovery| recovery.unrestored.clone());
        // Default: without recovery, no rank is replaced.
        let ranks = ranks.unwrap_or_default();
        let restored = if ranks.is_empty() { Ok(()) } else { self.restore_on(&ranks) };
        // Default: see above.
        let Some(recovery) = &mut self.recovery else { return restored };
        match restored {
            Ok(()) => {
                recovery.unrestored.clear();
                self.replaced += ranks.len() as u64;
                tracing::warn!("rank {} was lost ({}) and replaced", loss.rank, loss.cause);
                Ok(())
            }
            Err(error @ EngineError::Rank(RankError::Lost { .. })) => Err(error),
            Err(error) => Err(recovery.give_up(loss, error.as_failure())),
        }
    }

    fn restore_on(&mut self, ranks: &[usize]) -> Result<(), EngineError> {
        // The interrupted call repeats its own budget.
        let interrupted = self.ordered_share.take();
        let restored = self
            .restore_share()
            .and_then(|()| self.restore_replicas())
            .and_then(|()| self.restore_contents(ranks));
        self.ordered_share = interrupted;
        restored
    }

    /// Sets the budget of experts that is in force, if it was changed since the model was opened.
    fn restore_share(&mut self) -> Result<(), EngineError> {
        if self.expert_share.is_none() {
            return Ok(());
        }
        self.ordered_share = self.expert_share;
        self.on_all_once(Command::ChangeExpertMemory, &|runner| runner.change_expert_memory())
    }

    /// Sets the replicas that are in force, also on remaining ranks, which may have missed the last agreement.
    fn restore_replicas(&mut self) -> Result<(), EngineError> {
        // Default: a model without replicas has none to restore.
        let Some(replicas) = self.current_replicas().cloned() else { return Ok(()) };
        let command = Command::RestoreReplicas(replicas.clone());
        self.on_all_once(command, &|runner| adopt(runner, &replicas))
    }

    fn restore_contents(&mut self, ranks: &[usize]) -> Result<(), EngineError> {
        let none = &|_: &mut dyn ModelRunner| Ok(());
        for page in self.written.pages() {
            let (ranks, bytes) = (ranks.to_vec(), self.runner.read_page(page)?);
            self.on_all_once(Command::RestorePage { ranks, page, bytes }, none)?;
        }
        for state in self.written.states() {
            let (ranks, bytes) = (ranks.to_vec(), self.runner.read_state(state)?);
            self.on_all_once(Command::RestoreState { ranks, state, bytes }, none)?;
        }
        Ok(())
    }
}

/// Returns the reason why a rank that holds some heads of all pages is not replaced.
fn heads_lost(rank: usize) -> Failure {
    Failure {
        reason: format!("keys and values are divided by heads, and those of rank {rank} are lost"),
        class: ErrorClass::Broken,
        needs_reopening: true,
    }
}

/// Returns true if a step writes a state that it reads.
fn overwrites_states(batch: &Batch) -> bool {
    let mut tracks = batch.sequences.iter().map(|sequence| &sequence.states);
    tracks.any(|track| {
        track.from.is_some_and(|from| track.to.iter().any(|write| write.state == from))
    })
}

impl ModelRunner for LeadRunner {
    fn config(&self) -> &ModelConfig {
        self.runner.config()
    }

    fn limits(&self) -> RunnerLimits {
        self.runner.limits()
    }

    fn step<'a>(&'a mut self, batch: &'a Batch, cancel: &'a CancelToken) -> StepFuture<'a> {
        Box::pin(self.run(batch, cancel))
    }

    fn expert_memory(&self) -> Option<Arc<ExpertMemory>> {
        self.memory.clone()
    }

    fn change_expert_memory(&mut self) -> Result<(), EngineError> {
        let own = &|runner: &mut dyn ModelRunner| runner.change_expert_memory();
        self.on_all(&|| Command::ChangeExpertMemory, own)
    }

    fn routing_recorder(&self) -> Option<Arc<RoutingRecorder>> {
        self.runner.routing_recorder()
    }

    fn recycle(&mut self, output: StepOutput) {
        self.runner.recycle(output);
    }

    fn copy_page(&mut self, source: PageId, destination: PageId) -> Result<(), EngineError> {
        let command = &|| Command::CopyPage { source, destination };
        let own = &|runner: &mut dyn ModelRunner| runner.copy_page(source, destination);
        self.on_all(command, own)?;
        self.written.mark_page(destination);
        Ok(())
    }

    fn read_page(&mut self, page: PageId) -> Result<Vec<u8>, EngineError> {
        if self.runner.divided_pages().is_none() {
            // All ranks hold the same pages.
            return self.runner.read_page(page);
        }
        loop {
            match self.gather_parts(page) {
                Ok(page) => return Ok(page),
                Err(error) => self.recover(error)?,
            }
        }
    }

    fn write_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), EngineError> {
        let command = &|| Command::WritePage { page, bytes: bytes.to_vec() };
        self.on_all(command, &|runner| runner.write_page(page, bytes))?;
        self.written.mark_page(page);
        Ok(())
    }

    fn read_state(&mut self, state: StateId) -> Result<Vec<u8>, EngineError> {
        self.runner.read_state(state)
    }

    fn write_state(&mut self, state: StateId, bytes: &[u8]) -> Result<(), EngineError> {
        let command = &|| Command::WriteState { state, bytes: bytes.to_vec() };
        self.on_all(command, &|runner| runner.write_state(state, bytes))?;
        self.written.mark_state(state);
        Ok(())
    }
}

impl Drop for LeadRunner {
    fn drop(&mut self) {
        // A lost rank may never end, so only ranks that were told are waited for.
        if self.order(Command::Close).is_ok() {
            let replaceable = self.recovery.iter_mut().flat_map(|all| all.threads.drain(..));
            for thread in self.threads.drain(..).chain(replaceable.map(|rank| rank.thread)) {
                // A panic or an error of a rank was reported by the step that it ended.
                let _ = thread.join();
            }
        }
    }
}
