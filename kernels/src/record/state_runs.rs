//! Launches of runs that update recurrent states.

use nestling_core::EngineError;
use nestling_core::batch::Run;
use nestling_gpu::{CommandRecorder, GpuStates, WorkKind, at_once, pieces, word, work_of};

use crate::backend::CudaBackend;
use crate::driver::Address;
use crate::params::StateRun;
use crate::recorder::Recorder;

/// Runs of one launch.
#[derive(Clone, Copy)]
pub(super) struct LaunchedRuns {
    /// Address of the first [`StateRun`].
    pub runs: Address,
    /// Number of runs.
    pub count: u32,
    /// Work of all rows.
    pub work: u64,
}

/// Calls `launch` with pieces of bounded work. Later runs of a sequence follow in later calls.
pub(super) fn launch_runs(
    backend: &mut CudaBackend,
    runs: &[Run],
    states: &mut GpuStates<CudaBackend>,
    row_work: u64,
    mut launch: impl FnMut(&mut Recorder, LaunchedRuns) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let rates = &backend.recorder.meter.rates;
    let rows_max = at_once(row_work, rates.launch_work(WorkKind::Recurrence), 1);
    // Default: without runs, there are no launches.
    let deepest = runs.iter().map(|run| run.depth).max().unwrap_or(0);
    for depth in 0..=deepest {
        let table = table(backend, runs, depth, states)?;
        let recorder = &mut backend.recorder;
        let first = recorder.table(&table)?;
        for piece in pieces(table.iter().map(|run| run.rows.into()), rows_max as u64) {
            let runs = first + (piece.start * size_of::<StateRun>()) as u64;
            let count = word("runs", piece.len())?;
            let rows: usize = table[piece].iter().map(|run| run.rows as usize).sum();
            let work = work_of(&[rows]).saturating_mul(row_work);
            launch(recorder, LaunchedRuns { runs, count, work })?;
        }
    }
    Ok(())
}

/// Returns the runs with `depth` preceding runs of the same sequence. They continue from the states of the
/// preceding runs.
fn table(
    backend: &mut CudaBackend,
    all: &[Run],
    depth: usize,
    states: &mut GpuStates<CudaBackend>,
) -> Result<Vec<StateRun>, EngineError> {
    let mut table = Vec::new();
    for (index, run) in all.iter().enumerate().filter(|(_, run)| run.depth == depth) {
        let before = if depth == 0 { run.from } else { Some(all[index - 1].to) };
        let from = before.map_or(Ok(0), |from| states.get(from))?;
        table.push(StateRun {
            from,
            to: states.prepare(backend, run.to)?,
            first_row: word("rows", run.rows.start)?,
            rows: word("rows", run.rows.len())?,
        });
    }
    Ok(table)
}
