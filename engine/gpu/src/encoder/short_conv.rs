//! Gated short convolution: runs consecutive rows of each sequence and updates their recurrent states.

use nestling_core::EngineError;
use nestling_core::backend::ShortConv;
use nestling_core::batch::{StepRows, cut_runs, runs};

use crate::command_recorder::CommandRecorder;
use crate::device::Device;
use crate::memory::GpuBuffer;
use crate::operation::{Operation, ShortConvRuns};
use crate::states::GpuStates;
use crate::work::{WorkKind, at_once, short_conv_row_work};

pub(super) fn short_conv<D: Device>(
    device: &mut D,
    conv: &ShortConv<D>,
    rows: &StepRows,
    projected: &GpuBuffer<D>,
    states: &mut GpuStates<D>,
    out: &mut GpuBuffer<D>,
) -> Result<(), EngineError> {
    let mut parts = Vec::new();
    runs(rows, &mut parts)?;
    let most = device.recorder().meter().rates.launch_work(WorkKind::Recurrence);
    cut_runs(&mut parts, at_once(short_conv_row_work(&conv.shape), most, 1));
    for run in &parts {
        run.from.map_or(Ok(()), |from| states.get(from).map(drop))?;
        states.check_room(run.to)?;
    }
    out.resize(device, rows.len())?;
    device.record(Operation::ShortConv(ShortConvRuns {
        conv,
        runs: &parts,
        projected,
        states,
        out,
    }))
}
