//! RMSNorm of rows.

use nestling_engine::EngineError;

use super::Tools;
use crate::memory::{CudaBuffer, CudaFloats, expect, word};
use crate::params::RmsNormParams;

pub(super) fn rms_norm(
    tools: &mut Tools<'_>,
    (x, weight, eps): (&CudaBuffer, &CudaFloats, f32),
    out: &mut CudaBuffer,
) -> Result<(), EngineError> {
    expect("norm output", x.cols, out.cols)?;
    out.resize(tools.recorder, x.rows)?;
    record(tools, (x, weight, eps), (out, 0))
}

pub(super) fn rms_norm_add(
    tools: &mut Tools<'_>,
    (x, weight, eps): (&CudaBuffer, &CudaFloats, f32),
    out: &CudaBuffer,
) -> Result<(), EngineError> {
    expect("columns of a sum", x.cols, out.cols)?;
    expect("rows of a sum", x.rows, out.rows)?;
    record(tools, (x, weight, eps), (out, 1))
}

fn record(
    tools: &mut Tools<'_>,
    (x, weight, eps): (&CudaBuffer, &CudaFloats, f32),
    (out, adds): (&CudaBuffer, u32),
) -> Result<(), EngineError> {
    expect("norm weight", x.cols, weight.len)?;
    let params = RmsNormParams {
        x: x.address(),
        weight: weight.address(),
        out: out.address(),
        rows: word("rows", x.rows)?,
        cols: word("columns", x.cols)?,
        eps,
        adds,
    };
    Ok(tools.recorder.launch(params.launch(), &params)?)
}
