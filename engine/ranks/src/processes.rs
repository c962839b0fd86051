//! Opening of a model over processes.

use std::sync::Arc;

use nestling_core::backend::Backend;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::group::Group;
use nestling_cpu::kernels::Kernels;
use nestling_runtime::{Engine, Model, ModelOptions, ModelParts, ModelSource, OpenProgress};

use crate::command::settle;
use crate::follow::follow;
use crate::lead::LeadRunner;
use crate::open::{agree, cpu, divided_as_lead, threads_of};

/// Opens this process's share of a model that all processes of a group hold, on the CPU, with rank 0's division of
/// experts, keys and values, and its replicas. Returns the model on rank 0. On other ranks, returns `None` once rank 0 has closed it.
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
    let of_rank = |group: &Arc<dyn Group>| {
        let kernels = Kernels::of(engine.options().instruction_set)?;
        Ok(cpu(kernels, threads_of(engine), group))
    };
    open_process_on(of_rank, engine, source, options, group, progress, cancel)
}

/// Opens this process's share as [`open_on_processes`] does, on the backend that `backend` returns, connected to the
/// group. The backends of all processes must be of one kind ([`agree_on_devices`]).
///
/// # Errors
/// Fails as [`open_on_processes`] does, or if a backend cannot be created.
pub fn open_process_on<B: Backend + 'static>(
    backend: impl FnOnce(&Arc<dyn Group>) -> Result<B, EngineError>,
    engine: &Engine,
    source: ModelSource,
    options: &ModelOptions,
    group: Arc<dyn Group>,
    progress: &mut dyn FnMut(OpenProgress),
    cancel: &CancelToken,
) -> Result<Option<Model>, EngineError> {
    let options = &divided_as_lead(&*group, options)?;
    let opened = backend(&group)
        .and_then(|own| ModelParts::open(own, engine, source, options, progress, cancel));
    let (mut parts, _) = agree(&*group, opened)?;
    if group.share().rank > 0 {
        return follow(&mut *parts.runner, &*group).map(|()| None);
    }
    let device = format!("{}, {} ranks", parts.device, group.share().ranks);
    let runner = Box::new(LeadRunner::new(parts.runner, group).with_separate_memory());
    Model::from_parts(engine, ModelParts { runner, device, ..parts }).map(Some)
}

/// Agrees on whether the devices of all ranks are open, and of one kind.
///
/// # Errors
/// The own error of a rank whose device is not open; on all others, [`EngineError::Rank`] with that failure. Also fails
/// with [`EngineError::Mismatch`] if a rank's kind is not that of rank 0, and with [`EngineError::Rank`] if a rank was
/// lost.
pub fn agree_on_devices<T>(
    group: &dyn Group,
    opened: Result<T, EngineError>,
    kind: impl FnOnce(&T) -> String,
) -> Result<T, EngineError> {
    let (device, kinds) = settle(group, opened, kind)??;
    let first = kinds.first();
    match kinds.iter().find(|kind| Some(*kind) != first) {
        // Default: there is a first kind if another differs from it.
        Some(other) => Err(EngineError::mismatch(
            "kind of a rank's device",
            first.cloned().unwrap_or_default(),
            other.clone(),
        )),
        None => Ok(device),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::queue_group::QueueGroup;

    fn agreed(
        opened: [Result<&'static str, EngineError>; 2],
    ) -> Vec<Result<&'static str, EngineError>> {
        let group = QueueGroup::of_threads(2, Duration::from_secs(10));
        thread::scope(|scope| {
            let agree = |(rank, opened): (QueueGroup, _)| {
                scope.spawn(move || {
                    agree_on_devices(&rank, opened, |device: &&str| (*device).to_owned())
                })
            };
            let ranks: Vec<_> = group.into_iter().zip(opened).map(agree).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_ranks_hear_of_a_device_that_is_missing_or_of_another_kind() {
        let all: Vec<_> =
            agreed([Ok("cuda"), Ok("cuda")]).into_iter().map(Result::unwrap).collect();
        assert_eq!(all, ["cuda", "cuda"]);
        let missing = || Err(EngineError::NoDevice("there is no GPU 1".into()));
        let errors: Vec<_> =
            agreed([Ok("cuda"), missing()]).into_iter().map(Result::unwrap_err).collect();
        assert!(errors[0].to_string().contains("there is no GPU 1"), "{}", errors[0]);
        assert!(matches!(errors[1], EngineError::NoDevice(_)), "{:?}", errors[1]);
        for error in agreed([Ok("cuda"), Ok("cpu")]).into_iter().map(Result::unwrap_err) {
            assert!(matches!(error, EngineError::Mismatch { .. }), "{error:?}");
        }
    }
}
