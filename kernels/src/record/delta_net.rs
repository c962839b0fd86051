//! Gated DeltaNet: runs consecutive rows of each sequence and updates their recurrent states.

use nestling_core::EngineError;
use nestling_gpu::{DeltaNetRuns, HEAD_DIM_MAX, WorkKind, check_limit, recurrence_row_work, word};

use super::state_runs::launch_runs;
use crate::backend::CudaBackend;
use crate::params::DeltaNetParams;

type Runs<'a> = DeltaNetRuns<'a, CudaBackend>;

/// Maximum number of rows of a convolution, which a thread holds in registers.
const TAPS_MAX: usize = 16;

pub(super) fn delta_net(backend: &mut CudaBackend, of: Runs<'_>) -> Result<(), EngineError> {
    let shape = &of.net.shape;
    check_limit("rows of a convolution", TAPS_MAX, shape.conv_kernel_dim)?;
    check_limit("elements of a key", HEAD_DIM_MAX, shape.key_head_dim)?;
    let mut params = params(&of)?;
    let DeltaNetRuns { runs, states, .. } = of;
    launch_runs(backend, runs, states, recurrence_row_work(shape), |recorder, launched| {
        params.runs = launched.runs;
        params.runs_count = launched.count;
        let [conv, rule, _] = params.launches();
        recorder.launch(conv, &params)?;
        Ok(recorder.launch_of(WorkKind::Recurrence, launched.work, rule, &params)?)
    })?;
    let [_, _, gate] = params.launches();
    Ok(backend.recorder.launch(gate, &params)?)
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
