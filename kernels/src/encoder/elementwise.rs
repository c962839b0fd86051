//! What is done element by element, and with whole rows.

use nestling_core::EngineError;
use nestling_gpu::expect;

use super::Tools;
use crate::driver::Address;
use crate::kernel::Kernel;
use crate::memory::{CudaBuffer, CudaRouting, word};
use crate::params::{
    ARGMAX_PART_COLS, AddGatedParams, ArgmaxMergeParams, ArgmaxParams, ExpertsSumParams,
    GateParams, GatherRowsParams, ScalarParams,
};

pub(super) fn scale(tools: &mut Tools<'_>, factor: f32, x: &CudaBuffer) -> Result<(), EngineError> {
    scalar(tools, (Kernel::Scale, factor), x)
}

pub(super) fn softcap(tools: &mut Tools<'_>, cap: f32, x: &CudaBuffer) -> Result<(), EngineError> {
    scalar(tools, (Kernel::Softcap, cap), x)
}

fn scalar(
    tools: &mut Tools<'_>,
    (kernel, value): (Kernel, f32),
    x: &CudaBuffer,
) -> Result<(), EngineError> {
    let params = ScalarParams { x: x.address(), count: x.len() as u64, value, padding: 0 };
    Ok(tools.recorder.launch(params.launch(kernel), &params)?)
}

/// By a kernel, which a halted step passes over like all others.
pub(super) fn clear(
    tools: &mut Tools<'_>,
    rows: usize,
    out: &mut CudaBuffer,
) -> Result<(), EngineError> {
    out.resize(tools.recorder, rows)?;
    scalar(tools, (Kernel::Clear, 0.0), out)
}

pub(super) fn gate(
    tools: &mut Tools<'_>,
    gate: &CudaBuffer,
    out: &CudaBuffer,
) -> Result<(), EngineError> {
    expect("columns of gates", out.cols, gate.cols)?;
    expect("rows of gates", out.rows, gate.rows)?;
    let params = GateParams { gate: gate.address(), out: out.address(), count: out.len() as u64 };
    Ok(tools.recorder.launch(params.launch(), &params)?)
}

pub(super) fn add_gated(
    tools: &mut Tools<'_>,
    gate: &CudaBuffer,
    x: &CudaBuffer,
    out: &CudaBuffer,
) -> Result<(), EngineError> {
    expect("columns of a gate", 1, gate.cols)?;
    expect("rows of a gate", x.rows, gate.rows)?;
    expect("columns of a sum", out.cols, x.cols)?;
    expect("rows of a sum", out.rows, x.rows)?;
    let params = AddGatedParams {
        gate: gate.address(),
        x: x.address(),
        out: out.address(),
        rows: word("rows", out.rows)?,
        cols: word("columns", out.cols)?,
    };
    Ok(tools.recorder.launch(params.launch(), &params)?)
}

pub(super) fn gather_rows(
    tools: &mut Tools<'_>,
    x: &CudaBuffer,
    indices: &[u32],
    out: &mut CudaBuffer,
) -> Result<(), EngineError> {
    expect("gathered columns", x.cols, out.cols)?;
    if let Some(index) = indices.iter().find(|index| **index as usize >= x.rows) {
        return Err(EngineError::mismatch("gathered row", x.rows, index));
    }
    out.resize(tools.recorder, indices.len())?;
    let params = GatherRowsParams {
        x: x.address(),
        indices: tools.recorder.table(indices)?,
        out: out.address(),
        rows: word("rows", out.rows)?,
        cols: word("columns", out.cols)?,
    };
    Ok(tools.recorder.launch(params.launch(), &params)?)
}

pub(super) fn experts_sum(
    tools: &mut Tools<'_>,
    routing: &CudaRouting,
    expert_rows: &CudaBuffer,
    out: &CudaBuffer,
) -> Result<(), EngineError> {
    let per_token = routing.per_token;
    expect("rows of experts", out.rows * per_token, expert_rows.rows)?;
    expect("rows of the routing", out.rows, routing.rows)?;
    expect("outputs of an expert", out.cols, expert_rows.cols)?;
    let params = ExpertsSumParams {
        weights: routing.weights(),
        expert_rows: expert_rows.address(),
        out: out.address(),
        rows: word("rows", out.rows)?,
        cols: word("columns", out.cols)?,
        per_token: word("experts of a token", per_token)?,
        padding: 0,
    };
    Ok(tools.recorder.launch(params.launch(), &params)?)
}

/// The columns of the largest values among so many first ones, `[rows]`.
pub(super) fn argmax(
    tools: &mut Tools<'_>,
    x: &CudaBuffer,
    among: usize,
) -> Result<Address, EngineError> {
    let parts = x.cols.div_ceil(ARGMAX_PART_COLS as usize).max(1);
    let Tools { recorder, scratch } = tools;
    let orders = scratch.orders.of(recorder, x.rows * parts)?;
    let columns = scratch.columns.of(recorder, x.rows * parts)?;
    let (rows, parts) = (word("rows", x.rows)?, word("parts of a row", parts)?);
    let params = ArgmaxParams {
        x: x.address(),
        orders,
        columns,
        rows,
        cols: word("columns", x.cols)?,
        among: word("columns", among.min(x.cols))?,
        parts,
        part_cols: ARGMAX_PART_COLS,
        padding: 0,
    };
    recorder.launch(params.launch(), &params)?;
    if parts == 1 {
        return Ok(columns);
    }
    let out = scratch.best.of(recorder, x.rows)?;
    let params = ArgmaxMergeParams { orders, columns, out, rows, parts };
    recorder.launch(params.launch(), &params)?;
    Ok(out)
}
