//! Elementwise operations, and operations on whole rows.

use nestling_core::EngineError;
use nestling_gpu::{
    AddGated, Argmax, ArgmaxMerge, ExpertsSum, Gate, GatherRows, Scalar, ScalarKind,
};
use nestling_import::GateFunction;

use crate::driver::Address;
use crate::kernel::Kernel;
use crate::params::{
    ARGMAX_PART_COLS, AddGatedParams, ArgmaxMergeParams, ArgmaxParams, ExpertsSumParams,
    GateParams, GatherRowsParams, ScalarParams,
};
use crate::recorder::Recorder;

pub(super) fn scalar(recorder: &mut Recorder, of: &Scalar<Address>) -> Result<(), EngineError> {
    let (kernel, value) = match of.kind {
        ScalarKind::Scale(factor) => (Kernel::Scale, factor),
        ScalarKind::Softcap(cap) => (Kernel::Softcap, cap),
        ScalarKind::Clear => (Kernel::Clear, 0.0),
    };
    let params = ScalarParams { x: of.x, count: of.count.into(), value, padding: 0 };
    Ok(recorder.launch(params.launch(kernel), &params)?)
}

pub(super) fn gate(recorder: &mut Recorder, of: &Gate<Address>) -> Result<(), EngineError> {
    let params = GateParams {
        gate: of.gate,
        out: of.out,
        count: of.count.into(),
        width: of.width,
        is_softplus: u32::from(of.function == GateFunction::Softplus),
    };
    Ok(recorder.launch(params.launch(), &params)?)
}

pub(super) fn add_gated(
    recorder: &mut Recorder,
    &AddGated { gate, x, out, rows, cols }: &AddGated<Address>,
) -> Result<(), EngineError> {
    let params = AddGatedParams { gate, x, out, rows, cols };
    Ok(recorder.launch(params.launch(), &params)?)
}

pub(super) fn gather_rows(
    recorder: &mut Recorder,
    &GatherRows { x, indices, out, rows, cols }: &GatherRows<Address>,
) -> Result<(), EngineError> {
    let params = GatherRowsParams { x, indices, out, rows, cols };
    Ok(recorder.launch(params.launch(), &params)?)
}

pub(super) fn experts_sum(
    recorder: &mut Recorder,
    &ExpertsSum { weights, expert_rows, out, rows, cols, per_token }: &ExpertsSum<Address>,
) -> Result<(), EngineError> {
    let params = ExpertsSumParams { weights, expert_rows, out, rows, cols, per_token, padding: 0 };
    Ok(recorder.launch(params.launch(), &params)?)
}

pub(super) fn argmax(
    recorder: &mut Recorder,
    &Argmax { x, orders, columns, rows, cols, among, parts }: &Argmax<Address>,
) -> Result<(), EngineError> {
    let part_cols = ARGMAX_PART_COLS;
    let params =
        ArgmaxParams { x, orders, columns, rows, cols, among, parts, part_cols, padding: 0 };
    Ok(recorder.launch(params.launch(), &params)?)
}

pub(super) fn argmax_merge(
    recorder: &mut Recorder,
    &ArgmaxMerge { orders, columns, out, rows, parts }: &ArgmaxMerge<Address>,
) -> Result<(), EngineError> {
    let params = ArgmaxMergeParams { orders, columns, out, rows, parts };
    Ok(recorder.launch(params.launch(), &params)?)
}
