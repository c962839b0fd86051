//! Gated DeltaNet: runs consecutive rows of each sequence and updates their recurrent states.

use nestling_core::EngineError;
use nestling_core::batch::Run;
use nestling_gpu::{
    CommandRecorder, DeltaNetRuns, GpuStates, HEAD_DIM_MAX, WorkKind, at_once, check_limit, pieces,
    recurrence_row_work, word, work_of,
};

use crate::backend::CudaBackend;
use crate::params::{DeltaNetParams, StateRun};

type Runs<'a> = DeltaNetRuns<'a, CudaBackend>;

/// Maximum number of rows of a convolution, which a thread holds in registers.
const TAPS_MAX: usize = 16;

pub(super) fn delta_net(backend: &mut CudaBackend, of: Runs<'_>) -> Result<(), EngineError> {
    let shape = &of.net.shape;
    check_limit("rows of a convolution", TAPS_MAX, shape.conv_kernel_dim)?;
    check_limit("elements of a key", HEAD_DIM_MAX, shape.key_head_dim)?;
    let row_work = recurrence_row_work(shape);
    let rows_max =
        at_once(row_work, backend.recorder.meter.rates.launch_work(WorkKind::Recurrence), 1);
    let mut params = params(&of)?;
    // Default: without runs, there are no launches.
    let deepest = of.runs.iter().map(|run| run.depth).max().unwrap_or(0);
    for depth in 0..=deepest {
        let table = table(backend, of.runs, depth, of.states)?;
        let recorder = &mut backend.recorder;
        let first = recorder.table(&table)?;
        for piece in pieces(table.iter().map(|run| run.rows.into()), rows_max as u64) {
            params.runs = first + (piece.start * size_of::<StateRun>()) as u64;
            params.runs_count = word("runs", piece.len())?;
            let [conv, rule, _] = params.launches();
            recorder.launch(conv, &params)?;
            let rows: usize = table[piece].iter().map(|run| run.rows as usize).sum();
            let work = work_of(&[rows]).saturating_mul(row_work);
            recorder.launch_of(WorkKind::Recurrence, work, rule, &params)?;
        }
    }
    let [_, _, gate] = params.launches();
    Ok(backend.recorder.launch(gate, &params)?)
}

/// Returns the runs with `depth` preceding runs of the same sequence. They continue from the states of the
/// preceding runs.
pub(super) fn table(
    backend: &mut CudaBackend,
    all: &[Run],
    depth: usize,
    states: &mut GpuStates<CudaBackend>,
) -> Result<Vec<StateRun>, EngineError> {
    let mut table = Vec::new();
    for (index, run) in all.iter().enumerate().filter(|(_, run)| run.depth == depth) {
        let before = if depth == 0 { run.from } else { Some(all[index - 1].to) };
        let from = before.map_or(Ok(0), |from| states.get(from))?;
        table.push(StateRun {
            from,
            to: states.prepare(backend, run.to)?,
            first_row: word("rows", run.rows.start)?,
            rows: word("rows", run.rows.len())?,
        });
    }
    Ok(table)
}

/// Returns all parameters except the runs.
fn params(
    DeltaNetRuns { net, projected, mixed, out, .. }: &Runs<'_>,
) -> Result<DeltaNetParams, EngineError> {
    let shape = &net.shape;
    Ok(DeltaNetParams {
        projected: projected.binding(),
        conv: net.conv.binding(),
        query_norm: net.query_norm.binding(),
        key_norm: net.key_norm.binding(),
        rate: net.rate.binding(),
        time_bias: net.time_bias.binding(),
        norm: net.norm.binding(),
        mixed: *mixed,
        out: out.binding(),
        rows: word("rows", projected.rows)?,
        stride: word("columns", projected.cols)?,
        channels: word("columns", shape.channels())?,
        taps: word("rows of a convolution", shape.conv_kernel_dim)?,
        key_heads: word("key heads", shape.num_key_heads)?,
        value_heads: word("value heads", shape.num_value_heads)?,
        key_dim: word("elements of a key", shape.key_head_dim)?,
        value_dim: word("elements of a value", shape.value_head_dim)?,
        unit_eps: net.unit_eps,
        eps: net.eps,
        ..DeltaNetParams::default()
    })
}
