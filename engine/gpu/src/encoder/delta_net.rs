//! Gated DeltaNet: runs of rows, one after another, each from one state to another.

use nestling_core::EngineError;
use nestling_core::backend::DeltaNet;
use nestling_core::batch::{StepRows, cut_runs, runs};

use crate::device::Device;
use crate::expect;
use crate::memory::GpuBuffer;
use crate::operation::{DeltaNetRuns, Operation};
use crate::scratch::ScratchRoom;
use crate::states::GpuStates;
use crate::work::{WorkKind, at_once, recurrence_row_work};

pub(super) fn delta_net<D: Device>(
    device: &mut D,
    net: &DeltaNet<D>,
    rows: &StepRows,
    projected: &GpuBuffer<D>,
    states: &mut GpuStates<D>,
    out: &mut GpuBuffer<D>,
) -> Result<(), EngineError> {
    check(net, rows, projected, states)?;
    expect("outputs of a DeltaNet layer", net.shape.value_dim(), out.cols)?;
    let mut parts = Vec::new();
    runs(rows, &mut parts)?;
    let most = device.rates().launch_work(WorkKind::Recurrence);
    cut_runs(&mut parts, at_once(recurrence_row_work(&net.shape), most, 1));
    for run in &parts {
        run.from.map_or(Ok(()), |from| states.get(from).map(drop))?;
        states.check_room(run.to)?;
    }
    out.resize(device, rows.len())?;
    let mixed = device.scratch(ScratchRoom::Mixed, rows.len() * net.shape.channels())?;
    let runs = &parts;
    device.record(Operation::DeltaNet(DeltaNetRuns { net, runs, projected, mixed, states, out }))
}

fn check<D: Device>(
    net: &DeltaNet<D>,
    rows: &StepRows,
    projected: &GpuBuffer<D>,
    states: &GpuStates<D>,
) -> Result<(), EngineError> {
    let shape = &net.shape;
    expect("inputs of a DeltaNet layer", shape.inputs(), projected.cols)?;
    expect("rows of a DeltaNet layer", rows.len(), projected.rows)?;
    expect("weights of a convolution", shape.conv_kernel_dim * shape.channels(), net.conv.count)?;
    expect("decay rates", shape.num_value_heads, net.rate.count)?;
    expect("time biases", shape.num_value_heads, net.time_bias.count)?;
    expect("norm of a DeltaNet head", shape.value_head_dim, net.norm.count)?;
    expect("norm of queries", shape.key_head_dim, net.query_norm.count)?;
    expect("norm of keys", shape.key_head_dim, net.key_norm.count)?;
    expect("value heads of a key head", 0, shape.num_value_heads % shape.num_key_heads.max(1))?;
    expect("floats of a recurrent state", states.shape.floats, shape.state_floats())
}
