//! Rows of the embedding.

use nestling_core::EngineError;
use nestling_core::batch::StepRows;
use nestling_gpu::expect;

use super::Tools;
use crate::matrix::CudaMatrix;
use crate::memory::{CudaBuffer, word};
use crate::params::EmbedParams;

/// `out[t] = table[tokens[t]]`.
pub(super) fn embed(
    Tools { recorder, .. }: &mut Tools<'_>,
    table: &CudaMatrix,
    rows: &StepRows,
    out: &mut CudaBuffer,
) -> Result<(), EngineError> {
    expect("embedding", out.cols, table.form.cols)?;
    for (&token, &level) in rows.tokens.iter().zip(&rows.dense_levels) {
        if token as usize >= table.form.rows {
            return Err(EngineError::TokenOutOfRange { token, vocab_size: table.form.rows });
        }
        table.check(level)?;
    }
    recorder.begin(rows.len());
    out.resize(recorder, rows.len())?;
    let levels: Vec<u32> = rows.dense_levels.iter().map(|level| level.index() as u32).collect();
    let params = EmbedParams {
        table: table.address(),
        tokens: recorder.table(&rows.tokens)?,
        levels: recorder.table(&levels)?,
        out: out.address(),
        rows: word("rows", rows.len())?,
        cols: word("columns", table.form.cols)?,
    };
    Ok(recorder.launch(params.launch(), &params)?)
}
