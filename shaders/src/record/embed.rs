//! Embedding lookup.

use nestling_core::EngineError;
use nestling_gpu::{CommandRecorder, Embed, word};

use crate::backend::WgpuBackend;
use crate::params;
use crate::recorder::{Binding, Cost, spread};

/// Records one dispatch for each part of the table, which writes the rows whose tokens it contains.
pub(super) fn embed(
    WgpuBackend { recorder, pipelines, .. }: &mut WgpuBackend,
    Embed { table, tokens, levels, out }: &Embed<'_, WgpuBackend>,
) -> Result<(), EngineError> {
    let mut rows = Vec::with_capacity(tokens.len());
    for (&token, &level) in tokens.iter().zip(*levels) {
        rows.push([token, table.prefix(level)?]);
    }
    for part in &table.weights.parts {
        let held = part.first_row..part.first_row + part.rows;
        if !tokens.iter().any(|token| held.contains(&(*token as usize))) {
            continue;
        }
        let params = params::Embed {
            rows: word("rows", rows.len())?,
            cols: word("columns", table.form.cols)?,
            matrix: part.word(),
            padding: 0,
        };
        recorder.make_room()?;
        let rows = recorder.table(&rows)?;
        let bindings = [Binding::from(&part.buffer), rows, out.binding()];
        let cost = Cost::elements(spread(out.elements().div_ceil(64)), out.elements() as u64);
        recorder.dispatch(&pipelines.embed, &bindings, &params, cost)?;
    }
    Ok(())
}
