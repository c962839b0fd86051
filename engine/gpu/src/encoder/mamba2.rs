//! Mamba-2: runs consecutive rows of each sequence and updates their recurrent states.

use nestling_core::EngineError;
use nestling_core::backend::Mamba2;
use nestling_core::batch::StepRows;

use super::state_runs::state_runs;
use crate::device::Device;
use crate::device_scratch::DeviceScratch;
use crate::memory::GpuBuffer;
use crate::operation::{Mamba2Runs, Operation};
use crate::scratch::ScratchRoom;
use crate::states::GpuStates;
use crate::work::mamba2_row_work;

pub(super) fn mamba2<D: Device>(
    device: &mut D,
    mamba2: &Mamba2<D>,
    rows: &StepRows,
    projected: &GpuBuffer<D>,
    states: &mut GpuStates<D>,
    out: &mut GpuBuffer<D>,
) -> Result<(), EngineError> {
    let runs = &state_runs(device, rows, mamba2_row_work(&mamba2.shape), states)?;
    out.resize(device, rows.len())?;
    let mixed = device.scratch(ScratchRoom::Mixed, rows.len() * mamba2.shape.channels())?;
    device.record(Operation::Mamba2(Mamba2Runs { mamba2, runs, projected, mixed, states, out }))
}
