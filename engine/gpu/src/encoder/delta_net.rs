//! Gated DeltaNet: runs consecutive rows of each sequence and updates their recurrent states.

use nestling_core::EngineError;
use nestling_core::backend::DeltaNet;
use nestling_core::batch::{StepRows, cut_runs, runs};

use crate::command_recorder::CommandRecorder;
use crate::device::Device;
use crate::device_scratch::DeviceScratch;
use crate::memory::GpuBuffer;
use crate::operation::{DeltaNetRuns, Operation};
use crate::scratch::ScratchRoom;
use crate::states::GpuStates;
use crate::work::{WorkKind, at_once, recurrence_row_work};

pub(super) fn delta_net<D: Device>(
    device: &mut D,
    net: &DeltaNet<D>,
    rows: &StepRows,
    projected: &GpuBuffer<D>,
    states: &mut GpuStates<D>,
    out: &mut GpuBuffer<D>,
) -> Result<(), EngineError> {
    let mut parts = Vec::new();
    runs(rows, &mut parts)?;
    let most = device.recorder().meter().rates.launch_work(WorkKind::Recurrence);
    cut_runs(&mut parts, at_once(recurrence_row_work(&net.shape), most, 1));
    for run in &parts {
        run.from.map_or(Ok(()), |from| states.get(from).map(drop))?;
        states.check_room(run.to)?;
    }
    out.resize(device, rows.len())?;
    let mixed = device.scratch(ScratchRoom::Mixed, rows.len() * net.shape.channels())?;
    let runs = &parts;
    device.record(Operation::DeltaNet(DeltaNetRuns { net, runs, projected, mixed, states, out }))
}
