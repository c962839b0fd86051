//! Embedding lookup.

use nestling_core::EngineError;
use nestling_gpu::{CommandRecorder, Embed, word};

use crate::backend::CudaBackend;
use crate::params::EmbedParams;
use crate::recorder::Recorder;

pub(super) fn embed(
    recorder: &mut Recorder,
    Embed { table, tokens, levels, out }: &Embed<'_, CudaBackend>,
) -> Result<(), EngineError> {
    let levels: Vec<u32> = levels.iter().map(|level| level.index() as u32).collect();
    let params = EmbedParams {
        table: table.weights.address(),
        tokens: recorder.table(tokens)?,
        levels: recorder.table(&levels)?,
        out: out.binding(),
        rows: word("rows", tokens.len())?,
        cols: word("columns", table.form.cols)?,
    };
    Ok(recorder.launch(params.launch(), &params)?)
}
