//! The runner of rank 0, which the step loop calls as if there were no other ranks.

use std::sync::Arc;
use std::thread::JoinHandle;

use nestling_core::batch::Batch;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::expert_memory::ExpertMemory;
use nestling_core::group::Group;
use nestling_core::kv_cache::PageId;
use nestling_core::recurrent::StateId;
use nestling_core::routing_recorder::RoutingRecorder;
use nestling_core::runner::{ModelRunner, RunnerLimits, StepFuture, StepOutput};
use nestling_import::ModelConfig;

use crate::command::{Command, Order, Report, encode, settle};

/// A thread of a rank other than 0.
pub type FollowerThread = JoinHandle<Result<(), EngineError>>;

/// Runner of rank 0. Closes the other ranks when it is dropped.
pub struct LeadRunner {
    runner: Box<dyn ModelRunner>,
    group: Arc<dyn Group>,
    /// Budget of the experts of all ranks, if they are streamed.
    memory: Option<Arc<ExpertMemory>>,
    /// Number of ranks that share one budget of experts.
    sharing: u64,
    /// Threads of the other ranks, if they are of this process.
    threads: Vec<FollowerThread>,
}

impl LeadRunner {
    /// Wraps the runner of rank 0. All ranks share one budget of experts.
    pub fn new(runner: Box<dyn ModelRunner>, group: Arc<dyn Group>) -> Self {
        let memory = runner.expert_memory().map(|_| Arc::new(ExpertMemory::new()));
        let sharing = group.share().ranks as u64;
        Self { runner, group, memory, sharing, threads: Vec::new() }
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

    /// Tells the other ranks what to do next.
    fn order(&self, command: Command) -> Result<(), EngineError> {
        let memory = self.memory.as_ref();
        let order = Order {
            command,
            expert_budget: memory
                .and_then(|memory| memory.take_wanted())
                .map(|all| all / self.sharing),
            // Default: resident experts are not evicted.
            shed_bytes: memory.map_or(0, |memory| memory.take_shed().div_ceil(self.sharing)),
        };
        order.set_expert_memory(&*self.runner);
        self.group.broadcast(&encode(&order)?)?;
        Ok(())
    }

    /// Agrees on the outcome, and returns the result with the reports of all ranks.
    fn settle<T>(
        &self,
        result: Result<T, EngineError>,
        report: impl FnOnce(&T) -> Report,
    ) -> Result<(T, Vec<Report>), EngineError> {
        let settled: (T, Vec<Report>) = settle(&*self.group, result, report)??;
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

    /// Runs a command on all ranks that only changes state.
    fn on_all(
        &mut self,
        command: Command,
        own: impl FnOnce(&mut dyn ModelRunner) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        self.order(command)?;
        let done = own(&mut *self.runner);
        let expert_bytes = self.expert_bytes();
        self.settle(done, |()| Report { expert_bytes, ..Report::default() })?;
        Ok(())
    }

    async fn run(
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
        self.on_all(Command::ChangeExpertMemory, |runner| runner.change_expert_memory())
    }

    fn routing_recorder(&self) -> Option<Arc<RoutingRecorder>> {
        self.runner.routing_recorder()
    }

    fn recycle(&mut self, output: StepOutput) {
        self.runner.recycle(output);
    }

    fn copy_page(&mut self, source: PageId, destination: PageId) -> Result<(), EngineError> {
        let command = Command::CopyPage { source, destination };
        self.on_all(command, |runner| runner.copy_page(source, destination))
    }

    fn read_page(&mut self, page: PageId) -> Result<Vec<u8>, EngineError> {
        // All ranks hold the same pages.
        self.runner.read_page(page)
    }

    fn write_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), EngineError> {
        let command = Command::WritePage { page, bytes: bytes.to_vec() };
        self.on_all(command, |runner| runner.write_page(page, bytes))
    }

    fn read_state(&mut self, state: StateId) -> Result<Vec<u8>, EngineError> {
        self.runner.read_state(state)
    }

    fn write_state(&mut self, state: StateId, bytes: &[u8]) -> Result<(), EngineError> {
        let command = Command::WriteState { state, bytes: bytes.to_vec() };
        self.on_all(command, |runner| runner.write_state(state, bytes))
    }
}

impl Drop for LeadRunner {
    fn drop(&mut self) {
        // A lost rank may never end, so only ranks that were told are waited for.
        if self.order(Command::Close).is_ok() {
            for thread in self.threads.drain(..) {
                // A panic or an error of a rank was reported by the step that it ended.
                let _ = thread.join();
            }
        }
    }
}
