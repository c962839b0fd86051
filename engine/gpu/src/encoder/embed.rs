//! Embedding lookup.

use nestling_core::EngineError;
use nestling_core::batch::StepRows;

use crate::command_recorder::CommandRecorder;
use crate::device::Device;
use crate::memory::GpuBuffer;
use crate::operation::{Embed, Operation};

/// Computes `out[t] = table[tokens[t]]`.
pub(super) fn embed<D: Device>(
    device: &mut D,
    table: &D::Matrix,
    rows: &StepRows,
    out: &mut GpuBuffer<D>,
) -> Result<(), EngineError> {
    device.recorder().begin_step(rows.len());
    out.resize(device, rows.len())?;
    device.record(Operation::Embed(Embed { table, rows, out }))
}
