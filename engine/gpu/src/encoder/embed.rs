//! Embedding lookup.

use nestling_core::EngineError;
use nestling_core::backend::{HasShape, Linear};
use nestling_core::batch::StepRows;

use crate::command_recorder::CommandRecorder;
use crate::device::Device;
use crate::memory::GpuBuffer;
use crate::operation::{Embed, Operation};

/// Computes `out[t] = table[tokens[t]]`. Tokens of other ranks get the first row of this rank.
pub(super) fn embed<D: Device>(
    device: &mut D,
    Linear { matrix: table, outputs, .. }: &Linear<D>,
    rows: &StepRows,
    out: &mut GpuBuffer<D>,
) -> Result<(), EngineError> {
    device.recorder().begin_step(rows.len());
    out.resize(device, rows.len())?;
    let held = outputs.first..outputs.first + table.shape().rows;
    let row_of = |token: &u32| match held.contains(&(*token as usize)) {
        true => token - held.start as u32,
        false => 0,
    };
    let tokens: Vec<u32> = rows.tokens.iter().map(row_of).collect();
    let (tokens, levels) = (&tokens[..], &rows.dense_levels[..]);
    device.record(Operation::Embed(Embed { table, tokens, levels, out }))
}
