//! Gated DeltaNet: runs of rows, one after another, each from one state to another.

use nestling_core::EngineError;
use nestling_core::backend::DeltaNet;
use nestling_core::batch::StepRows;
use nestling_core::batch::{Run, cut_runs, runs};
use nestling_gpu::{WorkKind, at_once, check_limit, expect, pieces, recurrence_row_work, work_of};

use super::{HEAD_DIM_MAX, Tools};
use crate::backend::CudaBackend;
use crate::memory::{CudaBuffer, word};
use crate::params::{DeltaNetParams, StateRun};
use crate::states::CudaStates;

type Net = DeltaNet<CudaBackend>;

/// Most rows that a convolution sees: what a thread keeps.
const TAPS_MAX: usize = 16;

pub(super) fn delta_net(
    tools: &mut Tools<'_>,
    (net, rows): (&Net, &StepRows),
    projected: &CudaBuffer,
    states: &mut CudaStates,
    out: &mut CudaBuffer,
) -> Result<(), EngineError> {
    check(net, rows, projected, states)?;
    expect("outputs of a DeltaNet layer", net.shape.value_dim(), out.cols)?;
    let mut all = Vec::new();
    runs(rows, &mut all)?;
    let row_work = recurrence_row_work(&net.shape);
    let rows_max = at_once(row_work, tools.recorder.rates.launch_work(WorkKind::Recurrence), 1);
    cut_runs(&mut all, rows_max);
    for run in &all {
        run.from.map_or(Ok(()), |from| states.get(from).map(drop))?;
    }
    out.resize(tools.recorder, rows.len())?;
    let mut params = params(net, rows, projected)?;
    params.mixed = tools.scratch.mixed.of(tools.recorder, rows.len() * net.shape.channels())?;
    params.out = out.address();
    let deepest = all.iter().map(|run| run.depth).max().unwrap_or(0);
    for depth in 0..=deepest {
        let table = table(&all, depth, states)?;
        let first = tools.recorder.table(&table)?;
        for piece in pieces(table.iter().map(|run| run.rows.into()), rows_max as u64) {
            params.runs = first + (piece.start * size_of::<StateRun>()) as u64;
            params.runs_count = word("runs", piece.len())?;
            let [conv, rule, _] = params.launches();
            tools.recorder.launch(conv, &params)?;
            let rows: usize = table[piece].iter().map(|run| run.rows as usize).sum();
            let work = work_of(&[rows]).saturating_mul(row_work);
            tools.recorder.launch_of((WorkKind::Recurrence, work), rule, &params)?;
        }
    }
    let [_, _, gate] = params.launches();
    Ok(tools.recorder.launch(gate, &params)?)
}

/// The runs that have so many of their sequence before them, which go on where those ended.
fn table(all: &[Run], depth: usize, states: &mut CudaStates) -> Result<Vec<StateRun>, EngineError> {
    let mut table = Vec::new();
    for (index, run) in all.iter().enumerate().filter(|(_, run)| run.depth == depth) {
        let before = if depth == 0 { run.from } else { Some(all[index - 1].to) };
        let from = before.map_or(Ok(0), |from| states.get(from))?;
        table.push(StateRun {
            from,
            to: states.place(run.to)?,
            first_row: word("rows", run.rows.start)?,
            rows: word("rows", run.rows.len())?,
        });
    }
    Ok(table)
}

fn check(
    net: &Net,
    rows: &StepRows,
    projected: &CudaBuffer,
    states: &CudaStates,
) -> Result<(), EngineError> {
    let shape = &net.shape;
    expect("inputs of a DeltaNet layer", shape.inputs(), projected.cols)?;
    expect("rows of a DeltaNet layer", rows.len(), projected.rows)?;
    expect("weights of a convolution", shape.conv_kernel_dim * shape.channels(), net.conv.len)?;
    expect("decay rates", shape.num_value_heads, net.rate.len)?;
    expect("time biases", shape.num_value_heads, net.time_bias.len)?;
    expect("norm of a DeltaNet head", shape.value_head_dim, net.norm.len)?;
    expect("norm of queries", shape.key_head_dim, net.query_norm.len)?;
    expect("norm of keys", shape.key_head_dim, net.key_norm.len)?;
    expect("value heads of a key head", 0, shape.num_value_heads % shape.num_key_heads.max(1))?;
    check_limit("rows of a convolution", TAPS_MAX, shape.conv_kernel_dim)?;
    check_limit("elements of a key", HEAD_DIM_MAX, shape.key_head_dim)?;
    expect("floats of a recurrent state", states.shape.floats, shape.state_floats())
}

/// All but runs, and where the layer goes to.
fn params(
    net: &Net,
    rows: &StepRows,
    projected: &CudaBuffer,
) -> Result<DeltaNetParams, EngineError> {
    let shape = &net.shape;
    Ok(DeltaNetParams {
        projected: projected.address(),
        conv: net.conv.address(),
        query_norm: net.query_norm.address(),
        key_norm: net.key_norm.address(),
        rate: net.rate.address(),
        time_bias: net.time_bias.address(),
        norm: net.norm.address(),
        rows: word("rows", rows.len())?,
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
