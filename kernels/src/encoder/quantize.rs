//! Activations in int8.

use nestling_core::EngineError;
use nestling_formats::nested::GROUP;

use super::Tools;
use crate::memory::{CudaBuffer, word};
use crate::params::QuantizeParams;
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

/// Quantizes all rows, each head a row of its own.
pub(super) fn quantize(
    Tools { recorder, scratch, .. }: &mut Tools<'_>,
    x: &CudaBuffer,
    heads: Heads,
) -> Result<Quantized, EngineError> {
    let groups = x.rows * heads.count * heads.inputs.div_ceil(GROUP);
    let out = scratch.x.of(recorder, groups)?;
    let params = QuantizeParams {
        x: x.address(),
        values: out.values,
        scales: out.scales,
        rows: word("rows", x.rows)?,
        cols: word("columns", heads.inputs)?,
        parts: word("heads", heads.count)?,
        part_stride: word("columns", heads.width)?,
        stride: word("columns", x.cols)?,
        is_rotated: 0,
    };
    recorder.launch(params.launch(), &params)?;
    Ok(out)
}
