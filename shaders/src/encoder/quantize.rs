//! Activations in int8.

use bytemuck::{Pod, Zeroable};
use nestling_core::EngineError;
use nestling_formats::nested::GROUP;

use super::Tools;
use crate::memory::{WgpuBuffer, word};
use crate::recorder::spread;
use crate::scratch::Quantized;

/// Parts of rows that are quantized each on its own.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    /// Of a row.
    pub count: usize,
    /// Elements from one to the next.
    pub width: usize,
    /// The first elements of each, which are quantized.
    pub inputs: usize,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    rows: u32,
    cols: u32,
    parts: u32,
    part_stride: u32,
    stride: u32,
    rotated: u32,
    padding: [u32; 2],
}

/// Quantizes all rows, each head a row of its own.
pub(super) fn quantize(
    Tools { gpu, pipelines, recorder, scratch, .. }: &mut Tools<'_>,
    x: &WgpuBuffer,
    heads: Heads,
) -> Result<Quantized, EngineError> {
    let groups = x.rows * heads.count * heads.inputs.div_ceil(GROUP);
    let out = scratch.x.of(gpu, groups)?;
    let params = Params {
        rows: word("rows", x.rows)?,
        cols: word("columns", heads.inputs)?,
        parts: word("heads", heads.count)?,
        part_stride: word("columns", heads.width)?,
        stride: word("columns", x.cols)?,
        rotated: 0,
        padding: [0; 2],
    };
    let bindings = [x.binding(), out.values.clone(), out.scales.clone()];
    let cost = (spread(groups.div_ceil(64)), (groups * GROUP) as u64);
    recorder.dispatch(&pipelines.quantize, &bindings, &params, cost)?;
    Ok(out)
}
