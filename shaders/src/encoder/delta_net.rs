//! Gated DeltaNet: runs of rows, one after another, each from one state to another.

use bytemuck::{Pod, Zeroable};
use nestling_core::EngineError;
use nestling_core::backend::DeltaNet;
use nestling_core::batch::StepRows;
use nestling_core::batch::{Run, cut_runs, runs};
use nestling_core::recurrent::StateId;
use nestling_gpu::{WorkKind, at_once, expect, recurrence_row_work, work_of};
use nestling_import::DeltaNetConfig;

use super::Tools;
use crate::backend::WgpuBackend;
use crate::memory::{WgpuBuffer, word};
use crate::recorder::{Binding, Cost, spread};
use crate::states::WgpuStates;

type Net = DeltaNet<WgpuBackend>;

/// Floats of a state that a workgroup keeps.
const STATE_FLOATS: usize = 3072;

/// Most columns that a workgroup passes.
const COLS_MAX: usize = 16;

pub(super) fn delta_net(
    tools: &mut Tools<'_>,
    (net, rows): (&Net, &StepRows),
    projected: &WgpuBuffer,
    states: &mut WgpuStates,
    out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    check(net, rows, projected, states)?;
    expect("outputs of a DeltaNet layer", net.shape.value_dim(), out.cols)?;
    let mut parts = Vec::new();
    runs(rows, &mut parts)?;
    let most = tools.recorder.rates.launch_work(WorkKind::Recurrence);
    cut_runs(&mut parts, at_once(recurrence_row_work(&net.shape), most, 1));
    for run in &parts {
        run.from.map_or(Ok(()), |from| states.get(from).map(drop))?;
        states.check_place(run.to)?;
    }
    out.resize(tools.gpu, rows.len())?;
    let mixed = tools.scratch.mixed.of(tools.gpu, rows.len() * net.shape.channels())?;
    let mut before = None;
    for run in &parts {
        // Later runs of a sequence go on where the one before ended.
        let from = if run.depth == 0 { run.from } else { before };
        mix(tools, (net, run), (projected, states.binding(from)?), &mixed)?;
        pass(tools, (net, run, from), (projected, &mixed), states, out)?;
        before = Some(run.to);
    }
    gate(tools, net, projected, out)
}

fn check(
    net: &Net,
    rows: &StepRows,
    projected: &WgpuBuffer,
    states: &WgpuStates,
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
    expect("floats of a recurrent state", states.shape.floats, shape.state_floats())
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct MixParams {
    rows: u32,
    first_row: u32,
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    value_dim: u32,
    taps: u32,
    stride: u32,
    channels: u32,
    has_state: u32,
    eps: f32,
}

/// Convolution and norms of queries, keys and values of a run.
fn mix(
    tools: &mut Tools<'_>,
    (net, run): (&Net, &Run),
    (projected, state): (&WgpuBuffer, Option<Binding>),
    mixed: &Binding,
) -> Result<(), EngineError> {
    let shape = &net.shape;
    let params = MixParams {
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
    let none = tools.scratch.none.of(tools.gpu, 1)?;
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
    let cost = (spread(parts), work as u64);
    Ok(tools.recorder.dispatch(&tools.pipelines.delta_mix, &bindings, &params, cost)?)
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct RuleParams {
    rows: u32,
    first_row: u32,
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    value_dim: u32,
    cols: u32,
    window: u32,
    stride: u32,
    channels: u32,
    source: u32,
}

/// Where a shader finds the state before a run.
#[derive(Clone, Copy)]
enum Source {
    Nowhere,
    Before,
    InPlace,
}

/// Columns of a head's state that one workgroup keeps: a power of two.
fn cols(shape: &DeltaNetConfig) -> usize {
    let fitting = (STATE_FLOATS / shape.key_head_dim.max(1)).clamp(1, COLS_MAX);
    1 << fitting.ilog2()
}

/// Lets a run pass the states of all heads.
fn pass(
    tools: &mut Tools<'_>,
    (net, run, from): (&Net, &Run, Option<StateId>),
    (projected, mixed): (&WgpuBuffer, &Binding),
    states: &mut WgpuStates,
    out: &WgpuBuffer,
) -> Result<(), EngineError> {
    let shape = &net.shape;
    let cols = cols(shape);
    let after = Binding::from(states.place(run.to)?);
    let none = tools.scratch.none.of(tools.gpu, 1)?;
    let (source, before) = match states.binding(from)? {
        None => (Source::Nowhere, none),
        Some(_) if from == Some(run.to) => (Source::InPlace, none),
        Some(before) => (Source::Before, before),
    };
    let params = RuleParams {
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
    Ok(tools.recorder.dispatch(&tools.pipelines.delta_rule, &bindings, &params, cost)?)
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct GateParams {
    count: u32,
    heads: u32,
    head_dim: u32,
    stride: u32,
    first_gate: u32,
    eps: f32,
}

/// Norms what heads gave and multiplies it with the gates.
fn gate(
    tools: &mut Tools<'_>,
    net: &Net,
    projected: &WgpuBuffer,
    out: &WgpuBuffer,
) -> Result<(), EngineError> {
    let shape = &net.shape;
    let count = out.rows * shape.num_value_heads;
    let params = GateParams {
        count: word("heads of a step", count)?,
        heads: word("value heads", shape.num_value_heads)?,
        head_dim: word("elements of a value", shape.value_head_dim)?,
        stride: word("columns", projected.cols)?,
        first_gate: word("columns", shape.channels())?,
        eps: net.eps,
    };
    let bindings = [projected.binding(), net.norm.binding(), out.binding()];
    let cost = (spread(count), 8 * out.len() as u64);
    Ok(tools.recorder.dispatch(&tools.pipelines.delta_gate, &bindings, &params, cost)?)
}
