//! States that a run reads and writes.

use nestling_core::EngineError;
use nestling_core::batch::Run;
use nestling_core::recurrent::StateId;
use nestling_gpu::{DeviceScratch, GpuStates, ScratchRoom};

use crate::backend::WgpuBackend;
use crate::recorder::Binding;

/// Number of a state's floats that a workgroup holds.
const STATE_FLOATS: usize = 3072;

/// Maximum number of columns that a workgroup processes.
const COLS_MAX: usize = 16;

/// Returns the number of columns of a state with `rows` rows that one workgroup holds, a power of two.
pub(super) fn columns_of_workgroup(rows: usize) -> usize {
    let fitting = (STATE_FLOATS / rows.max(1)).clamp(1, COLS_MAX);
    1 << fitting.ilog2()
}

/// Location of the state before a run. The discriminants are shader arguments.
#[derive(Clone, Copy)]
pub(super) enum Source {
    Nowhere,
    Before,
    InPlace,
}

/// Memory of the states before and after a run.
pub(super) struct RunStates {
    pub source: Source,
    /// State before the run, if it has memory of its own; else any memory.
    pub before: Binding,
    pub after: Binding,
}

/// Returns the states of a run that continues from `from`, and allocates the one that it writes.
pub(super) fn run_states(
    backend: &mut WgpuBackend,
    states: &mut GpuStates<WgpuBackend>,
    run: &Run,
    from: Option<StateId>,
) -> Result<RunStates, EngineError> {
    let after = states.prepare(backend, run.to)?;
    let none = backend.scratch(ScratchRoom::Nothing, 1)?;
    let (source, before) = match state(states, from)? {
        None => (Source::Nowhere, none),
        Some(_) if from == Some(run.to) => (Source::InPlace, none),
        Some(before) => (Source::Before, before),
    };
    Ok(RunStates { source, before, after })
}

/// Returns the memory of a written state, or `None` without a state.
pub(super) fn state(
    states: &GpuStates<WgpuBackend>,
    state: Option<StateId>,
) -> Result<Option<Binding>, EngineError> {
    state.map(|state| states.get(state)).transpose()
}
