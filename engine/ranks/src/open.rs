//! Opening of a model over ranks that are threads.

use std::num::NonZero;
use std::sync::{Arc, Mutex};
use std::thread::{self, available_parallelism};

use nestling_core::backend::Backend;
use nestling_core::budget::{Budget, Reservation};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::group::{Group, RankError};
use nestling_core::runner::{ModelRunner, RunnerLimits};
use nestling_core::sync::whole;
use nestling_cpu::Cpu;
use nestling_cpu::kernels::Kernels;
use nestling_cpu::threads::ThreadPool;
use nestling_formats::Invariant;
use nestling_runtime::{
    Engine, Model, ModelIdentity, ModelOptions, ModelParts, ModelSource, OpenProgress, OpenWithin,
};

use crate::command::{decode, encode, settle};
use crate::lead::LeadRunner;
use crate::options::RankOptions;
use crate::queue_group::QueueGroup;
use crate::rank_memory::RankMemory;
use crate::rank_thread::{FollowerThread, Seat, join, serve};
use crate::recovery::{Connect, RankThread, Recovery, Start, seat};
use crate::renewable_group::RenewableGroup;

/// Backends of ranks that are threads. A closure that returns the backend of a rank implements it.
pub trait RankBackends<B>: Send {
    /// Returns the connection of a rank from its member of a group.
    fn connect(&self, member: QueueGroup) -> Arc<dyn Group> {
        Arc::new(member)
    }

    /// Returns the backend of a rank, connected to the group: when the model is opened, and for a replacement after the rank
    /// was lost.
    ///
    /// # Errors
    /// Fails with an error of the device.
    fn backend(&self, group: &Arc<dyn Group>) -> Result<B, EngineError>;
}

impl<B, F: Fn(&Arc<dyn Group>) -> Result<B, EngineError> + Send> RankBackends<B> for F {
    fn backend(&self, group: &Arc<dyn Group>) -> Result<B, EngineError> {
        self(group)
    }
}

/// Opens a model over ranks that are threads of this process and compute on the CPU, each with a share of the engine's
/// threads and memory budget. The model's outputs have the bits of one rank. A lost rank is replaced.
///
/// # Errors
/// Fails as [`Model::open_source`] does for any rank, with [`EngineError::Limit`] for no rank or more than
/// [`RANKS_MAX`](crate::RANKS_MAX), and with [`EngineError::Thread`] if a thread cannot be started.
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
    let kernels = Kernels::of(engine.options().instruction_set)?;
    let cpus = move |group: &Arc<dyn Group>| Ok(cpu(kernels, threads, group));
    open_on_backends(cpus, engine, source, options, ranks, progress, cancel)
}

/// Opens a model over ranks that are threads of this process, each with a backend of its own, such as one GPU, and a share
/// of the engine's memory budget. All backends must be of one kind. The model's outputs have the bits of one rank on such
/// a backend.
///
/// A rank that is lost later is replaced by one that loads the same share, and the interrupted step is computed again. If
/// that is impossible, for example because memory is short, the step and all later ones fail with
/// [`RankError::NotReplaced`].
///
/// # Errors
/// Fails as [`open_on_threads`] does, or if a backend cannot be created.
pub fn open_on_backends<B: Backend + 'static>(
    backends: impl RankBackends<B> + 'static,
    engine: &Engine,
    source: ModelSource,
    options: &ModelOptions,
    ranks: RankOptions,
    progress: &mut dyn FnMut(OpenProgress),
    cancel: &CancelToken,
) -> Result<Model, EngineError> {
    ranks.check()?;
    let backends: SharedBackends<B> = Arc::new(Mutex::new(backends));
    let budget = engine.budget();
    let free = budget.total_bytes().map(|_| budget.available_bytes() / ranks.ranks as u64);
    let memory_limit = free.into_iter().chain(options.memory_limit).min();
    let options = ModelOptions { memory_limit, ..options.clone() };
    let group = QueueGroup::of_threads(ranks.ranks, ranks.timeout).into_iter();
    let group =
        group.map(|member| Arc::new(RenewableGroup::new(whole(backends.lock()).connect(member))));
    let group: Vec<_> = group.collect();
    let of_rank = |rank: &Arc<RenewableGroup>| whole(backends.lock()).backend(&as_group(rank));
    let opened = group.iter().map(of_rank).collect::<Result<Vec<_>, _>>()?;
    let mut members = group.into_iter().zip(opened);
    let (first, own) = members.next().invariant("a group has a first rank")?;
    let (mut threads, mut ends) = (Vec::new(), Vec::new());
    for (rank, backend) in members {
        let follower = Follower {
            backend,
            source: source.another()?,
            options: options.clone(),
            opens: Opens::InEngine(engine.clone(), cancel.clone()),
        };
        let (groups, seat) = seat(rank);
        ends.push((groups, Arc::clone(&seat.orphan)));
        threads.push(follower.start(seat)?);
    }
    let again = source.another()?;
    let progress = &mut |done| {
        // A long opening is no silence.
        first.beat();
        progress(done);
    };
    let opened = ModelParts::open(own, engine, source, &options, progress, cancel);
    let taken_over = agree(&*first, opened).and_then(|(parts, memory)| {
        let own = RankMemory::of(&parts);
        Ok((take_over(&*first, parts, &memory)?, own, memory))
    });
    let (parts, memory, of_ranks) = match taken_over {
        Ok(taken_over) => taken_over,
        Err(error) => {
            drop((first, ends));
            return Err(cause_of(error, threads));
        }
    };
    let of_others = of_ranks.into_iter().skip(1);
    let threads = threads.into_iter().zip(ends).zip(of_others).map(|((thread, ends), memory)| {
        let (groups, orphan) = ends;
        RankThread { thread, groups, orphan, memory }
    });
    let recovery = Recovery {
        threads: threads.collect(),
        connect: connect(&backends),
        start: replacements(backends, again, &options, engine, &parts),
        ..Recovery::new(ranks, Arc::clone(&first), budget.clone(), memory)
    };
    let device = format!("{}, {} ranks", parts.device, ranks.ranks);
    let runner = Box::new(LeadRunner::new(parts.runner, first).with_recovery(recovery));
    Model::from_parts(engine, ModelParts { runner, device, ..parts })
}

/// Returns the options of this rank with the divisions that rank 0 was given.
pub(crate) fn divided_as_lead(
    group: &dyn Group,
    options: &ModelOptions,
) -> Result<ModelOptions, EngineError> {
    let own = (options.expert_division, options.kv_division, options.expert_replicas);
    let of_lead = decode(0, &group.broadcast(&encode(&own)?)?)?;
    let (expert_division, kv_division, expert_replicas) = of_lead;
    Ok(ModelOptions { expert_division, kv_division, expert_replicas, ..options.clone() })
}

/// Backends of the ranks, for as long as the model is open.
type SharedBackends<B> = Arc<Mutex<dyn RankBackends<B>>>;

/// A rank other than 0, before it is opened.
struct Follower<B> {
    backend: B,
    source: ModelSource,
    options: ModelOptions,
    opens: Opens,
}

/// Occasion on which a rank is opened.
enum Opens {
    /// With the model.
    InEngine(Engine, CancelToken),
    /// In place of a lost rank.
    Again(Box<Replacement>),
}

/// Parts of a replacement.
struct Replacement {
    within: OpenWithin,
    /// Values that all ranks share.
    expected: Expected,
    /// Held until the rank ends.
    reservations: Vec<Reservation>,
}

#[derive(Clone, Copy, PartialEq)]
struct Expected {
    limits: RunnerLimits,
    identity: ModelIdentity,
}

impl Expected {
    fn of(parts: &ModelParts) -> Self {
        Self { limits: parts.runner.limits(), identity: parts.identity }
    }
}

impl<B: Backend + 'static> Follower<B> {
    fn start(self, seat: Seat) -> Result<FollowerThread, EngineError> {
        let rank = seat.rank.share().rank;
        let builder = thread::Builder::new().name(format!("nestling-rank-{rank}"));
        builder.spawn(move || self.run(&seat)).map_err(EngineError::Thread)
    }

    fn run(self, seat: &Seat) -> Result<(), EngineError> {
        let Self { backend, source, options, opens } = self;
        let group = &*seat.rank;
        // A long opening is no silence.
        let beat = &mut |_| group.beat();
        match opens {
            Opens::InEngine(engine, cancel) => {
                let opened = ModelParts::open(backend, &engine, source, &options, beat, &cancel);
                // The reservation for streamed experts is rank 0's from here on. The engine and the page store end with
                // rank 0's.
                let (parts, memory) = agree(group, opened)?;
                let (mut runner, _reservations) = kept(parts);
                drop((engine, options));
                let own = memory.get(group.share().rank).copied().invariant("a rank has memory")?;
                let joined = group.all_gather(&[], &mut Vec::new()).map_err(EngineError::from);
                serve(&mut *runner, seat, own, joined)
            }
            Opens::Again(again) => {
                let Replacement { within, expected, reservations: _reservations } = *again;
                let cancel = CancelToken::new();
                let opened =
                    ModelParts::open_within(backend, &within, source, &options, beat, &cancel);
                let opened = opened.and_then(|parts| same_model(parts, expected));
                let parts = match opened {
                    Ok(parts) => parts,
                    Err(error) => {
                        group.fail(&error.as_failure())?;
                        return Err(error);
                    }
                };
                let memory = RankMemory::of(&parts);
                let (mut runner, _) = kept(parts);
                serve(&mut *runner, seat, memory, join(group, memory).map(|_| ()))
            }
        }
    }
}

/// Releases all but the runner and its reservations.
fn kept(parts: ModelParts) -> (Box<dyn ModelRunner>, Vec<Reservation>) {
    let ModelParts { runner, reservations, .. } = parts;
    (runner, reservations)
}

/// Refuses a replacement whose source has changed.
fn same_model(parts: ModelParts, expected: Expected) -> Result<ModelParts, EngineError> {
    let found = Expected::of(&parts);
    if found == expected {
        return Ok(parts);
    }
    let text = |of: Expected| format!("{:?} with {:?}", of.identity, of.limits);
    Err(EngineError::mismatch("model of a replaced rank", text(expected), text(found)))
}

fn as_group(rank: &Arc<RenewableGroup>) -> Arc<dyn Group> {
    Arc::clone(rank) as Arc<dyn Group>
}

/// Returns the function that connects ranks to later groups.
fn connect<B: 'static>(backends: &SharedBackends<B>) -> Connect {
    let backends = Arc::clone(backends);
    Arc::new(move |member| whole(backends.lock()).connect(member))
}

/// Returns the function that starts replacements of lost ranks.
fn replacements<B: Backend + 'static>(
    backends: SharedBackends<B>,
    source: ModelSource,
    options: &ModelOptions,
    engine: &Engine,
    parts: &ModelParts,
) -> Start {
    // Dual routing is calibrated on all ranks when the model is opened, and its results are rank 0's.
    let options = ModelOptions { dual: None, page_store: None, ..options.clone() };
    let (expected, threads) = (Expected::of(parts), threads_of(engine));
    Box::new(move |seat, reservations| {
        // The bytes of a replacement, which needs as much as the lost rank, are reserved already.
        let within = OpenWithin { budget: Budget::new(None), threads };
        let replacement = Replacement { within, expected, reservations };
        let follower = Follower {
            backend: whole(backends.lock()).backend(&as_group(&seat.rank))?,
            source: source.another()?,
            options: options.clone(),
            opens: Opens::Again(Box::new(replacement)),
        };
        follower.start(seat)
    })
}

/// Agrees on whether all ranks are open. Returns the memory of each.
pub(crate) fn agree(
    group: &dyn Group,
    opened: Result<ModelParts, EngineError>,
) -> Result<(ModelParts, Vec<RankMemory>), EngineError> {
    settle(group, opened, RankMemory::of)?
}

/// Makes rank 0 account for the memory of all ranks.
pub(crate) fn take_over(
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

/// Returns the error of the rank that failed first.
pub(crate) fn cause_of(error: EngineError, followers: Vec<FollowerThread>) -> EngineError {
    let EngineError::Rank(RankError::Failed { rank, .. }) = &error else { return error };
    let failed = rank.checked_sub(1).and_then(|index| followers.into_iter().nth(index));
    match failed.map(FollowerThread::join) {
        Some(Ok(Err(cause))) => cause,
        _ => error,
    }
}

/// Returns the CPU of a rank.
pub(crate) fn cpu(kernels: &'static Kernels, threads: usize, group: &Arc<dyn Group>) -> Cpu {
    Cpu::with(Arc::new(ThreadPool::new(threads)), kernels).in_group(Arc::clone(group))
}

pub(crate) fn threads_of(engine: &Engine) -> usize {
    let requested = engine.options().threads.filter(|threads| *threads > 0);
    // Default: a thread for each core.
    requested.unwrap_or_else(|| available_parallelism().map_or(1, NonZero::get))
}
