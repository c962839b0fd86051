//! RMSNorm of rows.

use bytemuck::{Pod, Zeroable};
use nestling_core::EngineError;
use nestling_core::backend::Write;
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
    write: Write,
    out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    expect("norm weight", x.cols, weight.len)?;
    expect("norm output", x.cols, out.cols)?;
    match write {
        Write::Set => out.resize(tools.gpu, x.rows)?,
        Write::Add => expect("rows of a sum", x.rows, out.rows)?,
    }
    let adds = u32::from(write == Write::Add);
    let params = Params { rows: word("rows", x.rows)?, cols: word("columns", x.cols)?, eps, adds };
    let bindings = [x.binding(), weight.binding(), out.binding()];
    let cost = (spread(x.rows), 2 * x.len() as u64);
    let Tools { pipelines, recorder, .. } = tools;
    Ok(recorder.dispatch(&pipelines.rms_norm, &bindings, &params, cost)?)
}
