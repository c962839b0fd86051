//! Models over ranks that are threads.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nestling_convert::convert::{ConvertOptions, convert};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::group::Group;
use nestling_core::runner::ModelRunner;
use nestling_cpu::Cpu;
use nestling_cpu::kernels::Kernels;
use nestling_cpu::threads::ThreadPool;
use nestling_experts::expert::{ExpertSource, StoreSource};
use nestling_formats::store::Store;
use nestling_import::checkpoint::Checkpoint;
use nestling_ranks::{LeadRunner, QueueGroup, follow};
use nestling_runtime::model::RunnerOptions;
use nestling_testkit::convert_once;
use nestling_testkit::runners::runner;

/// Timeout of a silent rank. An operation of a tiny model takes milliseconds, on a busy machine much longer.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A model over ranks.
pub struct Ranks {
    lead: Option<LeadRunner>,
    pub groups: Vec<Arc<dyn Group>>,
    followers: Vec<JoinHandle<Result<(), EngineError>>>,
}

impl Ranks {
    pub fn new(source: &Arc<dyn ExpertSource>, options: &RunnerOptions, ranks: usize) -> Self {
        let group = QueueGroup::of_threads(ranks, TIMEOUT).into_iter();
        Self::on(group.map(|rank| Arc::new(rank) as Arc<dyn Group>).collect(), source, options)
    }

    pub fn on(
        groups: Vec<Arc<dyn Group>>,
        source: &Arc<dyn ExpertSource>,
        options: &RunnerOptions,
    ) -> Self {
        let follower = |rank: &Arc<dyn Group>| {
            let (source, options, rank) = (Arc::clone(source), options.clone(), Arc::clone(rank));
            thread::spawn(move || {
                let mut own = runner(cpu(&rank), &source, &options);
                follow(&mut own, &*rank)
            })
        };
        let followers = groups[1..].iter().map(follower).collect();
        let own = Box::new(runner(cpu(&groups[0]), source, options));
        let lead = Some(LeadRunner::new(own, Arc::clone(&groups[0])));
        Self { lead, groups, followers }
    }

    pub fn lead(&mut self) -> &mut dyn ModelRunner {
        self.lead.as_mut().unwrap()
    }

    pub fn own(&mut self) -> &mut LeadRunner {
        self.lead.as_mut().unwrap()
    }

    /// Closes the model, and returns the results of the other ranks.
    pub fn close(mut self) -> Vec<Result<(), EngineError>> {
        self.lead = None;
        self.groups.clear();
        self.followers.drain(..).map(|follower| follower.join().unwrap()).collect()
    }
}

pub fn cpu(rank: &Arc<dyn Group>) -> Cpu {
    Cpu::with(Arc::new(ThreadPool::new(1)), Kernels::detect()).in_group(Arc::clone(rank))
}

/// Converts a checkpoint to a store in a folder. A checkpoint outside of the folder is converted once for all tests.
pub fn store(checkpoint: &Path, folder: &Path) -> Arc<Store> {
    if checkpoint.starts_with(folder) {
        return converted(checkpoint, folder, &ConvertOptions::default());
    }
    let path = folder.join("tiny.nest");
    convert_once(checkpoint, &path);
    Arc::new(Store::open(path).unwrap())
}

pub fn converted(checkpoint: &Path, folder: &Path, options: &ConvertOptions) -> Arc<Store> {
    let path = folder.join("tiny.nest");
    let checkpoint = Checkpoint::open(checkpoint).unwrap();
    convert(&checkpoint, &path, options, &CancelToken::new(), &mut |_| {}).unwrap();
    Arc::new(Store::open(path).unwrap())
}

pub fn source(store: &Arc<Store>) -> Arc<dyn ExpertSource> {
    Arc::new(StoreSource::owned(Arc::clone(store), None).unwrap())
}

/// Fails if `work` takes longer than five minutes: a fault must never leave a rank waiting.
pub fn watched<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = channel();
    let thread = thread::spawn(move || {
        let _ = sender.send(work());
    });
    match receiver.recv_timeout(Duration::from_secs(300)) {
        Ok(result) => result,
        Err(_) if thread.is_finished() => std::panic::resume_unwind(thread.join().unwrap_err()),
        Err(_) => panic!("a rank waits for ever"),
    }
}
