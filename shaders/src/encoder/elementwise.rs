//! What is done element by element, and with whole rows.

use nestling_core::EngineError;
use nestling_gpu::expect;

use super::Tools;
use crate::memory::{WgpuBuffer, WgpuRouting, word};
use crate::pipelines::Pipeline;
use crate::recorder::{Binding, spread};

/// Records one invocation for each element of `out`. `params` are what follows their count.
fn record(
    tools: &mut Tools<'_>,
    pipeline: impl Fn(&crate::pipelines::Pipelines) -> &Pipeline,
    bindings: &[Binding],
    (out, params): (&WgpuBuffer, [u32; 3]),
) -> Result<(), EngineError> {
    let count = word("elements of a buffer", out.len())?;
    let params = [count, params[0], params[1], params[2]];
    let cost = (spread(out.len().div_ceil(64)), out.len() as u64);
    Ok(tools.recorder.dispatch(pipeline(tools.pipelines), bindings, &params, cost)?)
}

pub(super) fn scale(tools: &mut Tools<'_>, factor: f32, x: &WgpuBuffer) -> Result<(), EngineError> {
    record(tools, |all| &all.scale, &[x.binding()], (x, [factor.to_bits(), 0, 0]))
}

pub(super) fn softcap(tools: &mut Tools<'_>, cap: f32, x: &WgpuBuffer) -> Result<(), EngineError> {
    record(tools, |all| &all.softcap, &[x.binding()], (x, [cap.to_bits(), 0, 0]))
}

/// A dispatch and no copy, so that it does nothing where an expert was missing.
pub(super) fn clear(
    tools: &mut Tools<'_>,
    rows: usize,
    out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    out.resize(tools.gpu, rows)?;
    record(tools, |all| &all.clear, &[out.binding()], (out, [0; 3]))
}

pub(super) fn gate(
    tools: &mut Tools<'_>,
    gate: &WgpuBuffer,
    out: &WgpuBuffer,
) -> Result<(), EngineError> {
    expect("columns of gates", out.cols, gate.cols)?;
    expect("rows of gates", out.rows, gate.rows)?;
    record(tools, |all| &all.gate, &[gate.binding(), out.binding()], (out, [0; 3]))
}

pub(super) fn add_gated(
    tools: &mut Tools<'_>,
    gate: &WgpuBuffer,
    x: &WgpuBuffer,
    out: &WgpuBuffer,
) -> Result<(), EngineError> {
    expect("columns of a gate", 1, gate.cols)?;
    expect("rows of a gate", x.rows, gate.rows)?;
    expect("columns of a sum", out.cols, x.cols)?;
    expect("rows of a sum", out.rows, x.rows)?;
    let bindings = [gate.binding(), x.binding(), out.binding()];
    record(tools, |all| &all.add_gated, &bindings, (out, [word("columns", out.cols)?, 0, 0]))
}

pub(super) fn gather_rows(
    tools: &mut Tools<'_>,
    x: &WgpuBuffer,
    indices: &[u32],
    out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    expect("gathered columns", x.cols, out.cols)?;
    if let Some(index) = indices.iter().find(|index| **index as usize >= x.rows) {
        return Err(EngineError::mismatch("gathered row", x.rows, index));
    }
    out.resize(tools.gpu, indices.len())?;
    if indices.is_empty() {
        return Ok(());
    }
    let indices = tools.recorder.table(indices)?;
    let bindings = [x.binding(), indices, out.binding()];
    record(tools, |all| &all.gather_rows, &bindings, (out, [word("columns", out.cols)?, 0, 0]))
}

pub(super) fn experts_sum(
    tools: &mut Tools<'_>,
    routing: &WgpuRouting,
    expert_rows: &WgpuBuffer,
    out: &WgpuBuffer,
) -> Result<(), EngineError> {
    let per_token = routing.per_token;
    expect("rows of experts", out.rows * per_token, expert_rows.rows)?;
    expect("rows of the routing", out.rows, routing.rows)?;
    expect("outputs of an expert", out.cols, expert_rows.cols)?;
    let bindings = [Binding::from(&routing.weights), expert_rows.binding(), out.binding()];
    let params = [word("columns", out.cols)?, word("experts of a token", per_token)?, 0];
    record(tools, |all| &all.experts_sum, &bindings, (out, params))
}

/// Columns that a workgroup of `argmax` looks at: 16 for each of its invocations.
const ARGMAX_PART_COLS: usize = 1024;

/// Parts of a row of so many columns that `argmax` looks at side by side.
pub(crate) fn argmax_parts(cols: usize) -> usize {
    cols.div_ceil(ARGMAX_PART_COLS).max(1)
}

/// The columns of the largest values among so many first ones, `[rows]`.
pub(super) fn argmax(
    tools: &mut Tools<'_>,
    x: &WgpuBuffer,
    among: usize,
) -> Result<Binding, EngineError> {
    let Tools { gpu, pipelines, recorder, scratch, .. } = tools;
    let parts = argmax_parts(x.cols);
    let count = x.rows * parts;
    let (orders, columns) = (scratch.orders.of(gpu, count)?, scratch.columns.of(gpu, count)?);
    let parts = word("parts of a row", parts)?;
    let [cols, among] = [x.cols, among.min(x.cols)].map(|cols| word("columns", cols));
    let params = [word("parts of rows", count)?, parts, cols?, among?, ARGMAX_PART_COLS as u32];
    let bindings = [x.binding(), orders.clone(), columns.clone()];
    let cost = (spread(count), x.len() as u64);
    recorder.dispatch(&pipelines.argmax, &bindings, &params, cost)?;
    if parts == 1 {
        return Ok(columns);
    }
    let best = scratch.best.of(gpu, x.rows)?;
    let params = [word("rows", x.rows)?, parts];
    let cost = (spread(x.rows), count as u64);
    recorder.dispatch(&pipelines.argmax_merge, &[orders, columns, best.clone()], &params, cost)?;
    Ok(best)
}
