//! Elementwise operations, and operations on whole rows.

use bytemuck::Pod;
use nestling_core::EngineError;
use nestling_gpu::{
    AddGated, Argmax, ArgmaxMerge, ExpertsSum, Gate, GatherRows, Scalar, ScalarKind,
};
use nestling_import::GateFunction;

use crate::backend::WgpuBackend;
use crate::params::{
    AddGatedParams, ArgmaxMergeParams, ArgmaxParams, ClearParams, ExpertsSumParams, GateParams,
    GatherRowsParams, ScaleParams, SoftcapParams,
};
use crate::pipelines::Pipeline;
use crate::recorder::{Binding, Cost, Recorder, spread};

/// Columns that a workgroup of `argmax` compares: 16 for each invocation.
pub(crate) const ARGMAX_PART_COLS: usize = 1024;

/// Records a dispatch with one invocation for each element.
fn per_element(
    recorder: &mut Recorder,
    pipeline: &Pipeline,
    bindings: &[Binding],
    count: u32,
    params: &impl Pod,
) -> Result<(), EngineError> {
    let cost = Cost::elements(spread(count.div_ceil(64) as usize), u64::from(count));
    Ok(recorder.dispatch(pipeline, bindings, params, cost)?)
}

pub(super) fn scalar(
    WgpuBackend { recorder, pipelines, .. }: &mut WgpuBackend,
    Scalar { kind, x, count }: &Scalar<Binding>,
) -> Result<(), EngineError> {
    let (bindings, count) = ([x.clone()], *count);
    match *kind {
        ScalarKind::Scale(factor) => {
            let params = ScaleParams { count, factor };
            per_element(recorder, &pipelines.scale, &bindings, count, &params)
        }
        ScalarKind::Softcap(cap) => {
            let params = SoftcapParams { count, cap };
            per_element(recorder, &pipelines.softcap, &bindings, count, &params)
        }
        ScalarKind::Clear => {
            per_element(recorder, &pipelines.clear, &bindings, count, &ClearParams { count })
        }
    }
}

pub(super) fn gate(
    WgpuBackend { recorder, pipelines, .. }: &mut WgpuBackend,
    Gate { function, gate, out, count, width }: &Gate<Binding>,
) -> Result<(), EngineError> {
    let is_softplus = u32::from(*function == GateFunction::Softplus);
    let params = GateParams { count: *count, width: *width, is_softplus };
    per_element(recorder, &pipelines.gate, &[gate.clone(), out.clone()], *count, &params)
}

/// Returns the number of elements of rows, which must fit in 32 bits.
fn elements(rows: u32, cols: u32) -> Result<u32, EngineError> {
    nestling_gpu::word("elements of a buffer", rows as usize * cols as usize)
}

pub(super) fn add_gated(
    WgpuBackend { recorder, pipelines, .. }: &mut WgpuBackend,
    AddGated { gate, x, out, rows, cols }: &AddGated<Binding>,
) -> Result<(), EngineError> {
    let bindings = [gate.clone(), x.clone(), out.clone()];
    let count = elements(*rows, *cols)?;
    let params = AddGatedParams { count, cols: *cols };
    per_element(recorder, &pipelines.add_gated, &bindings, count, &params)
}

pub(super) fn gather_rows(
    WgpuBackend { recorder, pipelines, .. }: &mut WgpuBackend,
    GatherRows { x, indices, out, rows, cols }: &GatherRows<Binding>,
) -> Result<(), EngineError> {
    let bindings = [x.clone(), indices.clone(), out.clone()];
    let count = elements(*rows, *cols)?;
    let params = GatherRowsParams { count, cols: *cols };
    per_element(recorder, &pipelines.gather_rows, &bindings, count, &params)
}

pub(super) fn experts_sum(
    WgpuBackend { recorder, pipelines, .. }: &mut WgpuBackend,
    ExpertsSum { weights, expert_rows, out, rows, cols, per_token }: &ExpertsSum<Binding>,
) -> Result<(), EngineError> {
    let bindings = [weights.clone(), expert_rows.clone(), out.clone()];
    let count = elements(*rows, *cols)?;
    let params = ExpertsSumParams { count, cols: *cols, per_token: *per_token };
    per_element(recorder, &pipelines.experts_sum, &bindings, count, &params)
}

pub(super) fn argmax(
    WgpuBackend { recorder, pipelines, .. }: &mut WgpuBackend,
    Argmax { x, orders, columns, rows, cols, among, parts }: &Argmax<Binding>,
) -> Result<(), EngineError> {
    let count = nestling_gpu::word("parts of rows", *rows as usize * *parts as usize)?;
    let params = ArgmaxParams {
        count,
        parts: *parts,
        cols: *cols,
        among: *among,
        part_cols: ARGMAX_PART_COLS as u32,
    };
    let bindings = [x.clone(), orders.clone(), columns.clone()];
    let cost = Cost::elements(spread(count as usize), u64::from(*rows) * u64::from(*cols));
    Ok(recorder.dispatch(&pipelines.argmax, &bindings, &params, cost)?)
}

pub(super) fn argmax_merge(
    WgpuBackend { recorder, pipelines, .. }: &mut WgpuBackend,
    ArgmaxMerge { orders, columns, out, rows, parts }: &ArgmaxMerge<Binding>,
) -> Result<(), EngineError> {
    let cost = Cost::elements(spread(*rows as usize), u64::from(*rows) * u64::from(*parts));
    let bindings = [orders.clone(), columns.clone(), out.clone()];
    let params = ArgmaxMergeParams { rows: *rows, parts: *parts };
    Ok(recorder.dispatch(&pipelines.argmax_merge, &bindings, &params, cost)?)
}
