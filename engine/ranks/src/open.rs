//! Opening of a model over ranks that are threads, processes or workers of a browser.

use std::num::NonZero;
use std::sync::Arc;
use std::thread::{self, available_parallelism};
use std::time::Duration;

use nestling_core::backend::Backend;
use nestling_core::budget::{Purpose, Reservation};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::group::{Group, RankError};
use nestling_core::runner::ModelRunner;
use nestling_cpu::Cpu;
use nestling_cpu::kernels::Kernels;
use nestling_cpu::threads::ThreadPool;
use nestling_formats::Invariant;
use nestling_runtime::{Engine, Model, ModelOptions, ModelParts, ModelSource, OpenProgress};
use serde::{Deserialize, Serialize};

use crate::command::{decode, encode, settle};
use crate::follow::follow;
use crate::lead::{FollowerThread, LeadRunner};
use crate::queue_group::QueueGroup;

/// Maximum number of ranks of one process.
pub const RANKS_MAX: usize = 64;

/// Settings of a model over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankOptions {
    /// Number of ranks.
    pub ranks: usize,
    /// Duration after which a rank that reports no operation is lost.
    pub timeout: Duration,
}

impl RankOptions {
    /// Returns the settings for `ranks` ranks. The timeout exceeds the longest operation of a prompt and the longest
    /// wait for a disk.
    pub fn new(ranks: usize) -> Self {
        Self { ranks, timeout: Duration::from_secs(120) }
    }

    /// Checks the number of ranks.
    pub(crate) fn check(self) -> Result<(), EngineError> {
        if (1..=RANKS_MAX).contains(&self.ranks) {
            return Ok(());
        }
        let (limit, found) = (RANKS_MAX as u64, self.ranks as u64);
        Err(EngineError::Limit { what: "number of ranks", limit, found })
    }
}

/// Opens a model over ranks that are threads of this process and compute on the CPU, each with a share of the engine's
/// threads and memory budget. The model's outputs have the bits of one rank.
///
/// # Errors
/// Fails as [`Model::open_source`] does for any rank, with [`EngineError::Limit`] for no rank or more than
/// [`RANKS_MAX`], and with [`EngineError::Thread`] if a thread cannot be started.
pub fn open_on_threads(
    engine: &Engine,
    source: ModelSource,
    options: &ModelOptions,
    ranks: RankOptions,
    progress: &mut dyn FnMut(OpenProgress),
    cancel: &CancelToken,
) -> Result<Model, EngineError> {
    ranks.check()?;
    let threads = (threads_of(engine) / ranks.ranks).max(1);
    let cpus = |group: &Arc<dyn Group>| cpu(engine, threads, group);
    open_on_backends(cpus, engine, source, options, ranks, progress, cancel)
}

/// Opens a model over ranks that are threads of this process, each with a backend of its own, such as one GPU, and a share
/// of the engine's memory budget. `backend` returns that of the rank whose group it receives, connected to the group.
/// All backends must be of one kind. The model's outputs have the bits of one rank on such a backend.
///
/// # Errors
/// Fails as [`open_on_threads`] does, or if `backend` does.
pub fn open_on_backends<B: Backend>(
    mut backend: impl FnMut(&Arc<dyn Group>) -> Result<B, EngineError>,
    engine: &Engine,
    source: ModelSource,
    options: &ModelOptions,
    ranks: RankOptions,
    progress: &mut dyn FnMut(OpenProgress),
    cancel: &CancelToken,
) -> Result<Model, EngineError> {
    ranks.check()?;
    let budget = engine.budget();
    let free = budget.total_bytes().map(|_| budget.available_bytes() / ranks.ranks as u64);
    let memory_limit = free.into_iter().chain(options.memory_limit).min();
    let options = ModelOptions { memory_limit, ..options.clone() };
    let group = QueueGroup::of_threads(ranks.ranks, ranks.timeout).into_iter();
    let group: Vec<_> = group.map(|rank| Arc::new(rank) as Arc<dyn Group>).collect();
    let backends = group.iter().map(&mut backend).collect::<Result<Vec<_>, _>>()?;
    let mut ranks = group.into_iter().zip(backends);
    let (first, own) = ranks.next().invariant("a group has a first rank")?;
    let mut followers = Vec::new();
    for (rank, backend) in ranks {
        let follower = Follower {
            backend,
            engine: engine.clone(),
            source: source.another()?,
            options: options.clone(),
            cancel: cancel.clone(),
        };
        let builder = thread::Builder::new().name(format!("nestling-rank-{}", rank.share().rank));
        let thread = builder.spawn(move || follower.run(&rank));
        followers.push(thread.map_err(EngineError::Thread)?);
    }
    let opened = ModelParts::open(own, engine, source, &options, progress, cancel);
    match agree(&*first, opened).and_then(|(parts, ranks)| take_over(&*first, parts, &ranks)) {
        Ok(parts) => Model::from_parts(engine, lead(parts, first, followers)),
        Err(error) => {
            drop(first);
            Err(cause_of(error, followers))
        }
    }
}

/// Opens this process's share of a model that all processes of a group hold. Returns the model on rank 0. On other
/// ranks, returns `None` once rank 0 has closed it.
///
/// # Errors
/// Fails as [`Model::open_source`] does for any rank, or with [`EngineError::Rank`] if a rank was lost.
pub fn open_on_processes(
    engine: &Engine,
    source: ModelSource,
    options: &ModelOptions,
    group: Arc<dyn Group>,
    progress: &mut dyn FnMut(OpenProgress),
    cancel: &CancelToken,
) -> Result<Option<Model>, EngineError> {
    let opened = cpu(engine, threads_of(engine), &group)
        .and_then(|cpu| ModelParts::open(cpu, engine, source, options, progress, cancel));
    let (mut parts, _) = agree(&*group, opened)?;
    if group.share().rank > 0 {
        return follow(&mut *parts.runner, &*group).map(|()| None);
    }
    let device = format!("{}, {} ranks", parts.device, group.share().ranks);
    let runner = Box::new(LeadRunner::new(parts.runner, group).with_separate_memory());
    Model::from_parts(engine, ModelParts { runner, device, ..parts }).map(Some)
}

/// Opens this worker's share of a model that workers of one program hold, each with an engine and a memory of its own, as
/// the workers of a browser's page. They divide the memory budget of rank 0's engine equally, and that engine accounts
/// for the memory of all. Engines of other ranks need no budget. Returns the model on rank 0. On other ranks, returns
/// `None` once rank 0 has closed it.
///
/// # Errors
/// Fails as [`open_on_processes`] does.
pub fn open_on_workers(
    engine: &Engine,
    source: ModelSource,
    options: &ModelOptions,
    group: Arc<dyn Group>,
    progress: &mut dyn FnMut(OpenProgress),
    cancel: &CancelToken,
) -> Result<Option<Model>, EngineError> {
    let free = engine.budget().total_bytes().map(|_| engine.budget().available_bytes());
    let share = free.map(|free| free / group.share().ranks as u64);
    let own_limit = share.into_iter().chain(options.memory_limit).min();
    let memory_limit = decode(0, &group.broadcast(&encode(&own_limit)?)?)?;
    let options = ModelOptions { memory_limit, ..options.clone() };
    // A worker has no thread that could report that it is alive.
    let mut alive = |done: OpenProgress| {
        group.beat();
        progress(done);
    };
    let opened = cpu(engine, threads_of(engine), &group)
        .and_then(|cpu| ModelParts::open(cpu, engine, source, &options, &mut alive, cancel));
    let (mut parts, ranks) = agree(&*group, opened)?;
    if group.share().rank > 0 {
        group.all_gather(&[], &mut Vec::new())?;
        return follow(&mut *parts.runner, &*group).map(|()| None);
    }
    let mut parts = take_over(&*group, parts, &ranks)?;
    let others = ranks.iter().skip(1).map(|rank| rank.fixed).sum();
    parts.reservations.push(engine.budget().reserve(Purpose::Weights, others)?);
    Model::from_parts(engine, lead(parts, group, Vec::new())).map(Some)
}

/// A rank other than 0, before it is opened.
struct Follower<B> {
    backend: B,
    engine: Engine,
    source: ModelSource,
    options: ModelOptions,
    cancel: CancelToken,
}

impl<B: Backend> Follower<B> {
    fn run(self, group: &Arc<dyn Group>) -> Result<(), EngineError> {
        let (mut runner, _reservations) = self.open(group)?;
        group.all_gather(&[], &mut Vec::new())?;
        follow(&mut *runner, &**group)
    }

    /// Opens the runner. Releases the engine and the page store: they end with rank 0's.
    fn open(
        self,
        group: &Arc<dyn Group>,
    ) -> Result<(Box<dyn ModelRunner>, Vec<Reservation>), EngineError> {
        let Self { backend, engine, source, options, cancel } = self;
        let opened = ModelParts::open(backend, &engine, source, &options, &mut |_| {}, &cancel);
        // The reservation for streamed experts is rank 0's from here on.
        let (ModelParts { runner, reservations, .. }, _) = agree(&**group, opened)?;
        Ok((runner, reservations))
    }
}

/// Memory of one rank in bytes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct RankMemory {
    /// Weights and experts that [`ModelParts::weight_bytes`] counts.
    held: u64,
    /// Reservation for streamed experts.
    reserved: u64,
    /// All other reservations.
    fixed: u64,
    weights: u64,
    experts: u64,
    all_experts: u64,
    kv: u64,
    scratch: u64,
    program: u64,
}

impl RankMemory {
    fn of(parts: &ModelParts) -> Self {
        // Default: resident experts have no budget of their own.
        let reserved = parts.experts.as_ref().map_or(0, Reservation::bytes);
        let fixed = parts.reservations.iter().map(Reservation::bytes).sum();
        let own = Self { held: parts.weight_bytes, reserved, fixed, ..Self::default() };
        // Default: a model opened from a source has a plan.
        let Some(plan) = &parts.plan else { return own };
        Self {
            weights: plan.weight_bytes,
            experts: plan.expert_bytes,
            all_experts: plan.expert_bytes_total,
            kv: plan.kv_bytes,
            scratch: plan.scratch_bytes,
            program: plan.program_bytes,
            ..own
        }
    }
}

/// Agrees on whether all ranks are open. Returns the memory of each.
fn agree(
    group: &dyn Group,
    opened: Result<ModelParts, EngineError>,
) -> Result<(ModelParts, Vec<RankMemory>), EngineError> {
    settle(group, opened, RankMemory::of)?
}

/// Makes rank 0 account for the memory of all ranks.
fn take_over(
    group: &dyn Group,
    mut parts: ModelParts,
    ranks: &[RankMemory],
) -> Result<ModelParts, EngineError> {
    group.all_gather(&[], &mut Vec::new())?;
    let sum = |of: fn(&RankMemory) -> u64| ranks.iter().map(of).sum::<u64>();
    parts.weight_bytes = sum(|rank| rank.held);
    if let Some(experts) = &mut parts.experts {
        experts.resize(sum(|rank| rank.reserved))?;
    }
    if let Some(plan) = &mut parts.plan {
        plan.weight_bytes = sum(|rank| rank.weights);
        plan.expert_bytes = sum(|rank| rank.experts);
        plan.expert_bytes_total = sum(|rank| rank.all_experts);
        plan.kv_bytes = sum(|rank| rank.kv);
        plan.scratch_bytes = sum(|rank| rank.scratch);
        plan.program_bytes = sum(|rank| rank.program);
    }
    Ok(parts)
}

fn lead(parts: ModelParts, group: Arc<dyn Group>, followers: Vec<FollowerThread>) -> ModelParts {
    let device = format!("{}, {} ranks", parts.device, group.share().ranks);
    let runner = LeadRunner::new(parts.runner, group).with_threads(followers);
    ModelParts { runner: Box::new(runner), device, ..parts }
}

/// Returns the error of the rank that failed first.
pub(crate) fn cause_of(error: EngineError, followers: Vec<FollowerThread>) -> EngineError {
    let EngineError::Rank(RankError::Failed { rank, .. }) = &error else { return error };
    let failed = rank.checked_sub(1).and_then(|index| followers.into_iter().nth(index));
    match failed.map(FollowerThread::join) {
        Some(Ok(Err(cause))) => cause,
        _ => error,
    }
}

/// Returns the CPU of a rank, with the instruction set of the engine.
fn cpu(engine: &Engine, threads: usize, group: &Arc<dyn Group>) -> Result<Cpu, EngineError> {
    let pool = Arc::new(ThreadPool::new(threads));
    let kernels = Kernels::of(engine.options().instruction_set)?;
    Ok(Cpu::with(pool, kernels).in_group(Arc::clone(group)))
}

fn threads_of(engine: &Engine) -> usize {
    let requested = engine.options().threads.filter(|threads| *threads > 0);
    // Default: a thread for each core.
    requested.unwrap_or_else(|| available_parallelism().map_or(1, NonZero::get))
}
