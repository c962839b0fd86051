//! RMSNorm of rows.

use bytemuck::{Pod, Zeroable};
use nestling_core::EngineError;
use nestling_gpu::expect;

use super::Tools;
use crate::memory::{WgpuBuffer, WgpuFloats, word};
use crate::recorder::spread;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    rows: u32,
    cols: u32,
    eps: f32,
    adds: u32,
}

pub(super) fn rms_norm(
    tools: &mut Tools<'_>,
    (x, weight, eps): (&WgpuBuffer, &WgpuFloats, f32),
    out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    expect("norm output", x.cols, out.cols)?;
    out.resize(tools.gpu, x.rows)?;
    record(tools, (x, weight, eps), (out, 0))
}

pub(super) fn rms_norm_add(
    tools: &mut Tools<'_>,
    (x, weight, eps): (&WgpuBuffer, &WgpuFloats, f32),
    out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    expect("columns of a sum", x.cols, out.cols)?;
    expect("rows of a sum", x.rows, out.rows)?;
    record(tools, (x, weight, eps), (out, 1))
}

fn record(
    Tools { pipelines, recorder, .. }: &mut Tools<'_>,
    (x, weight, eps): (&WgpuBuffer, &WgpuFloats, f32),
    (out, adds): (&WgpuBuffer, u32),
) -> Result<(), EngineError> {
    expect("norm weight", x.cols, weight.len)?;
    let params = Params { rows: word("rows", x.rows)?, cols: word("columns", x.cols)?, eps, adds };
    let bindings = [x.binding(), weight.binding(), out.binding()];
    let cost = (spread(x.rows), 2 * x.len() as u64);
    Ok(recorder.dispatch(&pipelines.rms_norm, &bindings, &params, cost)?)
}
