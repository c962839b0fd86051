//! Opening of a model over workers of one program that share no memory.

use std::sync::Arc;

use nestling_core::budget::Purpose;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::group::Group;
use nestling_cpu::kernels::Kernels;
use nestling_runtime::{Engine, Model, ModelOptions, ModelParts, ModelSource, OpenProgress};

use crate::command::{decode, encode};
use crate::follow::follow;
use crate::lead::LeadRunner;
use crate::open::{agree, cpu, divided_as_lead, take_over, threads_of};

/// Opens this worker's share of a model that workers of one program hold, each with an engine and a memory of its own, as
/// the workers of a browser's page. They divide the memory budget of rank 0's engine equally, and that engine accounts
/// for the memory of all. Engines of other ranks need no budget. Returns the model on rank 0. On other ranks, returns
/// `None` once rank 0 has closed it.
///
/// # Errors
/// Fails as [`open_on_processes`](crate::open_on_processes) does.
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
    let options = ModelOptions { memory_limit, ..divided_as_lead(&*group, options)? };
    // A worker has no thread that could report that it is alive.
    let mut alive = |done: OpenProgress| {
        group.beat();
        progress(done);
    };
    let opened = Kernels::of(engine.options().instruction_set).and_then(|kernels| {
        let cpu = cpu(kernels, threads_of(engine), &group);
        ModelParts::open(cpu, engine, source, &options, &mut alive, cancel)
    });
    let (mut parts, ranks) = agree(&*group, opened)?;
    if group.share().rank > 0 {
        group.all_gather(&[], &mut Vec::new())?;
        return follow(&mut *parts.runner, &*group).map(|()| None);
    }
    let mut parts = take_over(&*group, parts, &ranks)?;
    let others = ranks.iter().skip(1).map(|rank| rank.fixed).sum();
    parts.reservations.push(engine.budget().reserve(Purpose::Weights, others)?);
    let device = format!("{}, {} ranks", parts.device, ranks.len());
    let runner = Box::new(LeadRunner::new(parts.runner, group));
    Model::from_parts(engine, ModelParts { runner, device, ..parts }).map(Some)
}
