//! Gated DeltaNet: runs consecutive rows of each sequence and updates their recurrent states.

use nestling_core::EngineError;
use nestling_core::batch::Run;
use nestling_core::recurrent::StateId;
use nestling_gpu::{
    DeltaNetRuns, DeviceScratch, ScratchRoom, WorkKind, recurrence_row_work, word, work_of,
};

use super::state_runs::{RunStates, columns_of_workgroup, run_states, state};
use crate::backend::WgpuBackend;
use crate::params::{DeltaGateParams, DeltaMixParams, DeltaRuleParams};
use crate::recorder::{Binding, Cost, spread};

type Runs<'a> = DeltaNetRuns<'a, WgpuBackend>;

pub(super) fn delta_net(backend: &mut WgpuBackend, mut of: Runs<'_>) -> Result<(), EngineError> {
    let mut before = None;
    for run in of.runs {
        // Later runs of a sequence continue from the state after the previous run.
        let from = if run.depth == 0 { run.from } else { before };
        let state = state(of.states, from)?;
        mix(backend, &of, run, state)?;
        pass(backend, &mut of, run, from)?;
        before = Some(run.to);
    }
    gate(backend, &of)
}

/// Records convolution and norms of a run's queries, keys and values.
fn mix(
    backend: &mut WgpuBackend,
    DeltaNetRuns { net, projected, mixed, .. }: &Runs<'_>,
    run: &Run,
    state: Option<Binding>,
) -> Result<(), EngineError> {
    let shape = &net.shape;
    let params = DeltaMixParams {
        rows: word("rows", run.rows.len())?,
        first_row: word("rows", run.rows.start)?,
        key_heads: word("key heads", shape.num_key_heads)?,
        value_heads: word("value heads", shape.num_value_heads)?,
        key_dim: word("elements of a key", shape.key_head_dim)?,
        value_dim: word("elements of a value", shape.value_head_dim)?,
        taps: word("rows of a convolution", shape.window() + 1)?,
        stride: word("columns", projected.cols)?,
        channels: word("columns", shape.channels())?,
        has_state: u32::from(state.is_some()),
        eps: net.unit_eps,
    };
    let none = backend.scratch(ScratchRoom::Nothing, 1)?;
    let bindings = [
        projected.binding(),
        state.unwrap_or(none),
        net.conv.binding(),
        net.query_norm.binding(),
        net.key_norm.binding(),
        mixed.clone(),
    ];
    let parts = run.rows.len() * (2 * shape.num_key_heads + shape.num_value_heads);
    let work = run.rows.len() * shape.channels() * (shape.window() + 8);
    let cost = Cost::elements(spread(parts), work as u64);
    Ok(backend.recorder.dispatch(&backend.pipelines.delta_mix, &bindings, &params, cost)?)
}

/// Records the update of the states of all heads by a run.
fn pass(
    backend: &mut WgpuBackend,
    of: &mut Runs<'_>,
    run: &Run,
    from: Option<StateId>,
) -> Result<(), EngineError> {
    let RunStates { source, before, after } = run_states(backend, of.states, run, from)?;
    let DeltaNetRuns { net, projected, mixed, out, .. } = &*of;
    let shape = &net.shape;
    let cols = columns_of_workgroup(shape.key_head_dim);
    let params = DeltaRuleParams {
        rows: word("rows", run.rows.len())?,
        first_row: word("rows", run.rows.start)?,
        key_heads: word("key heads", shape.num_key_heads)?,
        value_heads: word("value heads", shape.num_value_heads)?,
        key_dim: word("elements of a key", shape.key_head_dim)?,
        value_dim: word("elements of a value", shape.value_head_dim)?,
        cols: word("columns", cols)?,
        window: word("rows of a convolution", shape.window())?,
        stride: word("columns", projected.cols)?,
        channels: word("columns", shape.channels())?,
        source: source as u32,
    };
    let bindings = [
        projected.binding(),
        mixed.clone(),
        net.rate.binding(),
        net.time_bias.binding(),
        before,
        after,
        out.binding(),
    ];
    let blocks = shape.num_value_heads * shape.value_head_dim.div_ceil(cols);
    let work = work_of(&[run.rows.len()]).saturating_mul(recurrence_row_work(shape));
    let cost = Cost { workgroups: spread(blocks), kind: WorkKind::Recurrence, work };
    Ok(backend.recorder.dispatch(&backend.pipelines.delta_rule, &bindings, &params, cost)?)
}

/// Norms the heads' outputs and multiplies them with the gates.
fn gate(
    WgpuBackend { recorder, pipelines, .. }: &mut WgpuBackend,
    DeltaNetRuns { net, projected, out, .. }: &Runs<'_>,
) -> Result<(), EngineError> {
    let shape = &net.shape;
    let count = out.rows * shape.num_value_heads;
    let params = DeltaGateParams {
        count: word("heads of a step", count)?,
        heads: word("value heads", shape.num_value_heads)?,
        head_dim: word("elements of a value", shape.value_head_dim)?,
        stride: word("columns", projected.cols)?,
        first_gate: word("columns", shape.channels())?,
        eps: net.eps,
    };
    let bindings = [projected.binding(), net.norm.binding(), out.binding()];
    let cost = Cost::elements(spread(count), 8 * out.elements() as u64);
    Ok(recorder.dispatch(&pipelines.delta_gate, &bindings, &params, cost)?)
}
