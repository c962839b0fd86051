//! Elementwise operations, and operations on whole rows.

use nestling_core::EngineError;
use nestling_import::GateFunction;

use crate::command_recorder::CommandRecorder;
use crate::device::Device;
use crate::device_scratch::DeviceScratch;
use crate::memory::{GpuBuffer, GpuRouting};
use crate::operation::{
    AddGated, Argmax, ArgmaxMerge, ExpertsSum, Gate, GatherRows, Operation, Scalar, ScalarKind,
};
use crate::scratch::ScratchRoom;
use crate::storage::word;

pub(super) fn scalar<D: Device>(
    device: &mut D,
    kind: ScalarKind,
    x: &GpuBuffer<D>,
) -> Result<(), EngineError> {
    let count = word("elements of a buffer", x.elements())?;
    device.record(Operation::Scalar(Scalar { kind, x: x.binding(), count }))
}

/// Clears a buffer with a kernel rather than a copy, so that the miss flag also suppresses it.
pub(super) fn clear<D: Device>(
    device: &mut D,
    rows: usize,
    out: &mut GpuBuffer<D>,
) -> Result<(), EngineError> {
    out.resize(device, rows)?;
    scalar(device, ScalarKind::Clear, out)
}

pub(super) fn gate<D: Device>(
    device: &mut D,
    function: GateFunction,
    gate: &GpuBuffer<D>,
    out: &GpuBuffer<D>,
) -> Result<(), EngineError> {
    let count = word("elements of a buffer", out.elements())?;
    let width = word("elements of a gate", out.cols / gate.cols.max(1))?.max(1);
    let (gate, out) = (gate.binding(), out.binding());
    device.record(Operation::Gate(Gate { function, gate, out, count, width }))
}

pub(super) fn add_gated<D: Device>(
    device: &mut D,
    gate: &GpuBuffer<D>,
    x: &GpuBuffer<D>,
    out: &GpuBuffer<D>,
) -> Result<(), EngineError> {
    device.record(Operation::AddGated(AddGated {
        gate: gate.binding(),
        x: x.binding(),
        out: out.binding(),
        rows: word("rows", out.rows)?,
        cols: word("columns", out.cols)?,
    }))
}

pub(super) fn gather_rows<D: Device>(
    device: &mut D,
    x: &GpuBuffer<D>,
    indices: &[u32],
    out: &mut GpuBuffer<D>,
) -> Result<(), EngineError> {
    out.resize(device, indices.len())?;
    if indices.is_empty() {
        return Ok(());
    }
    let indices = device.recorder().table(indices)?;
    device.record(Operation::GatherRows(GatherRows {
        x: x.binding(),
        indices,
        out: out.binding(),
        rows: word("rows", out.rows)?,
        cols: word("columns", out.cols)?,
    }))
}

pub(super) fn experts_sum<D: Device>(
    device: &mut D,
    routing: &GpuRouting<D>,
    expert_rows: &GpuBuffer<D>,
    out: &GpuBuffer<D>,
) -> Result<(), EngineError> {
    let per_token = routing.per_token;
    device.record(Operation::ExpertsSum(ExpertsSum {
        weights: routing.weights(),
        expert_rows: expert_rows.binding(),
        out: out.binding(),
        rows: word("rows", out.rows)?,
        cols: word("columns", out.cols)?,
        per_token: word("experts of a token", per_token)?,
    }))
}

/// Returns the column of each row's largest value among the first `among` columns, `[rows]`.
pub(super) fn argmax<D: Device>(
    device: &mut D,
    x: &GpuBuffer<D>,
    among: usize,
) -> Result<D::Binding, EngineError> {
    let parts = x.cols.div_ceil(D::ARGMAX_PART_COLS).max(1);
    let orders = device.scratch(ScratchRoom::Orders, x.rows * parts)?;
    let columns = device.scratch(ScratchRoom::Columns, x.rows * parts)?;
    let (rows, parts) = (word("rows", x.rows)?, word("parts of a row", parts)?);
    device.record(Operation::Argmax(Argmax {
        x: x.binding(),
        orders: orders.clone(),
        columns: columns.clone(),
        rows,
        cols: word("columns", x.cols)?,
        among: word("columns", among.min(x.cols))?,
        parts,
    }))?;
    if parts == 1 {
        return Ok(columns);
    }
    let out = device.scratch(ScratchRoom::Best, x.rows)?;
    let merge = ArgmaxMerge { orders, columns, out: out.clone(), rows, parts };
    device.record(Operation::ArgmaxMerge(merge))?;
    Ok(out)
}
