//! Rows of the embedding.

use nestling_core::EngineError;
use nestling_core::batch::StepRows;

use crate::device::Device;
use crate::device_matrix::DeviceMatrix;
use crate::expect;
use crate::memory::GpuBuffer;
use crate::operation::{Embed, Operation};

/// `out[t] = table[tokens[t]]`.
pub(super) fn embed<D: Device>(
    device: &mut D,
    table: &D::Matrix,
    rows: &StepRows,
    out: &mut GpuBuffer<D>,
) -> Result<(), EngineError> {
    let form = *table.form();
    expect("embedding", out.cols, form.cols)?;
    for (&token, &level) in rows.tokens.iter().zip(&rows.dense_levels) {
        if token as usize >= form.rows {
            return Err(EngineError::TokenOutOfRange { token, vocab_size: form.rows });
        }
        table.check(level)?;
    }
    device.begin_step(rows.len());
    out.resize(device, rows.len())?;
    device.record(Operation::Embed(Embed { table, rows, out }))
}
