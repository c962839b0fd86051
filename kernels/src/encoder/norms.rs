//! RMSNorm of rows, in int8 too where products take them so.

use nestling_core::EngineError;
use nestling_gpu::expect;

use super::Tools;
use crate::memory::{CudaBuffer, CudaFloats, word};
use crate::params::RmsNormParams;
use crate::scratch::Quantized;

pub(super) fn rms_norm(
    tools: &mut Tools<'_>,
    (x, weight, eps): (&CudaBuffer, &CudaFloats, f32),
    out: &mut CudaBuffer,
) -> Result<(), EngineError> {
    expect("norm output", x.cols, out.cols)?;
    out.resize(tools.recorder, x.rows)?;
    let int8 = out.make_int8(tools.recorder)?;
    record(tools, (x, weight, eps), (out, int8, 0))
}

pub(super) fn rms_norm_add(
    tools: &mut Tools<'_>,
    (x, weight, eps): (&CudaBuffer, &CudaFloats, f32),
    out: &CudaBuffer,
) -> Result<(), EngineError> {
    expect("columns of a sum", x.cols, out.cols)?;
    expect("rows of a sum", x.rows, out.rows)?;
    record(tools, (x, weight, eps), (out, None, 1))
}

fn record(
    tools: &mut Tools<'_>,
    (x, weight, eps): (&CudaBuffer, &CudaFloats, f32),
    (out, int8, adds): (&CudaBuffer, Option<Quantized>, u32),
) -> Result<(), EngineError> {
    expect("norm weight", x.cols, weight.len)?;
    let Quantized { values, scales } = int8.unwrap_or_default();
    let params = RmsNormParams {
        x: x.address(),
        weight: weight.address(),
        out: out.address(),
        values,
        scales,
        rows: word("rows", x.rows)?,
        cols: word("columns", x.cols)?,
        eps,
        adds,
    };
    Ok(tools.recorder.launch(params.launch(), &params)?)
}
