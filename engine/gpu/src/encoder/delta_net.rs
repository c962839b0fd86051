//! Gated DeltaNet: runs consecutive rows of each sequence and updates their recurrent states.

use nestling_core::EngineError;
use nestling_core::backend::DeltaNet;
use nestling_core::batch::StepRows;

use super::state_runs::state_runs;
use crate::device::Device;
use crate::device_scratch::DeviceScratch;
use crate::memory::GpuBuffer;
use crate::operation::{DeltaNetRuns, Operation};
use crate::scratch::ScratchRoom;
use crate::states::GpuStates;
use crate::work::recurrence_row_work;

pub(super) fn delta_net<D: Device>(
    device: &mut D,
    net: &DeltaNet<D>,
    rows: &StepRows,
    projected: &GpuBuffer<D>,
    states: &mut GpuStates<D>,
    out: &mut GpuBuffer<D>,
) -> Result<(), EngineError> {
    let runs = &state_runs(device, rows, recurrence_row_work(&net.shape), states)?;
    out.resize(device, rows.len())?;
    let mixed = device.scratch(ScratchRoom::Mixed, rows.len() * net.shape.channels())?;
    device.record(Operation::DeltaNet(DeltaNetRuns { net, runs, projected, mixed, states, out }))
}
