//! Gated short convolution: runs consecutive rows of each sequence and updates their recurrent states.

use nestling_core::EngineError;
use nestling_gpu::{
    CommandRecorder, ShortConvRuns, WorkKind, at_once, pieces, short_conv_row_work, word, work_of,
};

use super::delta_net::table;
use crate::backend::CudaBackend;
use crate::params::{ShortConvParams, StateRun};

pub(super) fn short_conv(
    backend: &mut CudaBackend,
    of: ShortConvRuns<'_, CudaBackend>,
) -> Result<(), EngineError> {
    let ShortConvRuns { conv, runs, projected, states, out } = of;
    let shape = &conv.shape;
    let row_work = short_conv_row_work(shape);
    let rates = &backend.recorder.meter.rates;
    let rows_max = at_once(row_work, rates.launch_work(WorkKind::Recurrence), 1);
    let mut params = ShortConvParams {
        projected: projected.binding(),
        conv: conv.taps.binding(),
        // Default: address 0 means no bias.
        bias: conv.bias.as_ref().map_or(0, |bias| bias.binding()),
        out: out.binding(),
        channels: word("columns", shape.channels)?,
        taps: word("rows of a convolution", shape.taps)?,
        ..ShortConvParams::default()
    };
    // Default: without runs, there are no launches.
    let deepest = runs.iter().map(|run| run.depth).max().unwrap_or(0);
    for depth in 0..=deepest {
        let table = table(backend, runs, depth, states)?;
        let recorder = &mut backend.recorder;
        let first = recorder.table(&table)?;
        for piece in pieces(table.iter().map(|run| run.rows.into()), rows_max as u64) {
            params.runs = first + (piece.start * size_of::<StateRun>()) as u64;
            params.runs_count = word("runs", piece.len())?;
            let rows: usize = table[piece].iter().map(|run| run.rows as usize).sum();
            let work = work_of(&[rows]).saturating_mul(row_work);
            recorder.launch_of(WorkKind::Recurrence, work, params.launch(), &params)?;
        }
    }
    Ok(())
}
