//! Rows of the embedding.

use bytemuck::{Pod, Zeroable};
use nestling_core::EngineError;
use nestling_core::batch::StepRows;
use nestling_gpu::expect;

use super::Tools;
use crate::matrix::WgpuMatrix;
use crate::memory::{WgpuBuffer, word};
use crate::recorder::{Binding, spread};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    rows: u32,
    cols: u32,
    matrix: u32,
    padding: u32,
}

/// `out[t] = table[tokens[t]]`; a part of the table gives the rows whose tokens it has.
pub(super) fn embed(
    Tools { gpu, pipelines, recorder, .. }: &mut Tools<'_>,
    table: &WgpuMatrix,
    rows: &StepRows,
    out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    expect("embedding", out.cols, table.form.cols)?;
    let mut tokens = Vec::with_capacity(rows.len());
    for (&token, &level) in rows.tokens.iter().zip(&rows.dense_levels) {
        if token as usize >= table.form.rows {
            return Err(EngineError::TokenOutOfRange { token, vocab_size: table.form.rows });
        }
        tokens.push([token, table.prefix(level)?]);
    }
    out.resize(gpu, rows.len())?;
    for part in &table.parts {
        let held = part.first_row..part.first_row + part.rows;
        if !rows.tokens.iter().any(|token| held.contains(&(*token as usize))) {
            continue;
        }
        let params = Params {
            rows: word("rows", rows.len())?,
            cols: word("columns", table.form.cols)?,
            matrix: part.place.word(),
            padding: 0,
        };
        recorder.make_room()?;
        let tokens = recorder.table(&tokens)?;
        let bindings = [Binding::from(&part.place.buffer), tokens, out.binding()];
        let cost = (spread(out.len().div_ceil(64)), out.len() as u64);
        recorder.dispatch(&pipelines.embed, &bindings, &params, cost)?;
    }
    Ok(())
}
