//! Mamba-2: runs consecutive rows of each sequence and updates their recurrent states.

use nestling_core::EngineError;
use nestling_core::batch::Run;
use nestling_gpu::{
    DeviceScratch, Mamba2Runs, ScratchRoom, WorkKind, mamba2_row_work, word, work_of,
};

use super::state_runs::{RunStates, columns_of_workgroup, run_states};
use crate::backend::WgpuBackend;
use crate::params::{Mamba2ConvParams, Mamba2NormParams, Mamba2ScanParams};
use crate::recorder::{Cost, spread};

type Runs<'a> = Mamba2Runs<'a, WgpuBackend>;

/// Number of invocations of a workgroup.
const LANES: usize = 64;

pub(super) fn mamba2(backend: &mut WgpuBackend, mut of: Runs<'_>) -> Result<(), EngineError> {
    let mut last = None;
    for run in of.runs {
        // Later runs of a sequence continue from the state after the previous run.
        let from = if run.depth == 0 { run.from } else { last };
        let memory = run_states(backend, of.states, run, from)?;
        convolve(backend, &of, run, &memory)?;
        scan(backend, &mut of, run, memory)?;
        last = Some(run.to);
    }
    norm(backend, &of)
}

/// Records the convolution of a run's channels, which updates the window of its state.
fn convolve(
    backend: &mut WgpuBackend,
    Mamba2Runs { mamba2, projected, mixed, .. }: &Runs<'_>,
    run: &Run,
    memory: &RunStates,
) -> Result<(), EngineError> {
    let shape = &mamba2.shape;
    let params = Mamba2ConvParams {
        rows: word("rows", run.rows.len())?,
        first_row: word("rows", run.rows.start)?,
        taps: word("rows of a convolution", shape.conv_kernel)?,
        channels: word("columns", shape.channels())?,
        stride: word("columns", projected.cols)?,
        first_channel: word("columns", shape.inner())?,
        source: memory.source as u32,
        has_bias: u32::from(mamba2.bias.is_some()),
    };
    let none = backend.scratch(ScratchRoom::Nothing, 1)?;
    let bias = mamba2.bias.as_ref().map_or(none, |bias| bias.binding());
    let bindings = [
        projected.binding(),
        mamba2.conv.binding(),
        bias,
        memory.before.clone(),
        memory.after.clone(),
        mixed.clone(),
    ];
    let work = run.rows.len() * shape.channels() * (shape.conv_kernel + 8);
    let cost = Cost::elements(spread(shape.channels().div_ceil(LANES)), work as u64);
    Ok(backend.recorder.dispatch(&backend.pipelines.mamba2_conv, &bindings, &params, cost)?)
}

/// Records the update of the states of all heads by a run.
fn scan(
    backend: &mut WgpuBackend,
    of: &mut Runs<'_>,
    run: &Run,
    memory: RunStates,
) -> Result<(), EngineError> {
    let Mamba2Runs { mamba2, projected, mixed, out, .. } = &*of;
    let shape = &mamba2.shape;
    let cols = columns_of_workgroup(shape.state_size);
    let params = Mamba2ScanParams {
        rows: word("rows", run.rows.len())?,
        first_row: word("rows", run.rows.start)?,
        heads: word("heads", shape.num_heads)?,
        n_groups: word("groups", shape.n_groups)?,
        head_dim: word("elements of a head", shape.head_dim)?,
        state_size: word("rows of a state", shape.state_size)?,
        cols: word("columns", cols)?,
        window: word("rows of a convolution", shape.window())?,
        stride: word("columns", projected.cols)?,
        channels: word("columns", shape.channels())?,
        source: memory.source as u32,
    };
    let bindings = [
        projected.binding(),
        mixed.clone(),
        mamba2.rate.binding(),
        mamba2.time_bias.binding(),
        mamba2.skip.binding(),
        memory.before,
        memory.after,
        out.binding(),
    ];
    let blocks = shape.num_heads * shape.head_dim.div_ceil(cols);
    let work = work_of(&[run.rows.len()]).saturating_mul(mamba2_row_work(shape));
    let cost = Cost { workgroups: spread(blocks), kind: WorkKind::Recurrence, work };
    Ok(backend.recorder.dispatch(&backend.pipelines.mamba2_scan, &bindings, &params, cost)?)
}

/// Norms the gated outputs of all rows.
fn norm(
    WgpuBackend { recorder, pipelines, .. }: &mut WgpuBackend,
    Mamba2Runs { mamba2, out, .. }: &Runs<'_>,
) -> Result<(), EngineError> {
    let shape = &mamba2.shape;
    let count = out.rows * shape.n_groups;
    let params = Mamba2NormParams {
        count: word("groups of a step", count)?,
        n_groups: word("groups", shape.n_groups)?,
        group_size: word("elements of a group", shape.norm_group())?,
        eps: shape.norm_eps,
    };
    let bindings = [mamba2.norm.binding(), out.binding()];
    let cost = Cost::elements(spread(count), 4 * out.elements() as u64);
    Ok(recorder.dispatch(&pipelines.mamba2_norm, &bindings, &params, cost)?)
}
