//! Runs of a step whose rows update recurrent states.

use nestling_core::EngineError;
use nestling_core::batch::{Run, StepRows, cut_runs, runs};

use crate::command_recorder::CommandRecorder;
use crate::device::Device;
use crate::states::GpuStates;
use crate::work::{WorkKind, at_once};

/// Cuts a step into runs, each short enough for one launch at `row_work` per row, and checks the states that they read and
/// write.
pub(super) fn state_runs<D: Device>(
    device: &mut D,
    rows: &StepRows,
    row_work: u64,
    states: &GpuStates<D>,
) -> Result<Vec<Run>, EngineError> {
    let mut parts = Vec::new();
    runs(rows, &mut parts)?;
    let most = device.recorder().meter().rates.launch_work(WorkKind::Recurrence);
    cut_runs(&mut parts, at_once(row_work, most, 1));
    for run in &parts {
        run.from.map_or(Ok(()), |from| states.get(from).map(drop))?;
        states.check_room(run.to)?;
    }
    Ok(parts)
}
