//! Gated short convolution: runs consecutive rows of each sequence and updates their recurrent states.

use nestling_core::EngineError;
use nestling_core::backend::ShortConv;
use nestling_core::batch::StepRows;

use super::state_runs::state_runs;
use crate::device::Device;
use crate::memory::GpuBuffer;
use crate::operation::{Operation, ShortConvRuns};
use crate::states::GpuStates;
use crate::work::short_conv_row_work;

pub(super) fn short_conv<D: Device>(
    device: &mut D,
    conv: &ShortConv<D>,
    rows: &StepRows,
    projected: &GpuBuffer<D>,
    states: &mut GpuStates<D>,
    out: &mut GpuBuffer<D>,
) -> Result<(), EngineError> {
    let runs = &state_runs(device, rows, short_conv_row_work(&conv.shape), states)?;
    out.resize(device, rows.len())?;
    device.record(Operation::ShortConv(ShortConvRuns { conv, runs, projected, states, out }))
}
