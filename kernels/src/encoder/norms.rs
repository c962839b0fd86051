//! RMSNorm of rows, in int8 too where products take them so.

use nestling_core::EngineError;
use nestling_core::backend::Write;
use nestling_gpu::expect;

use super::Tools;
use crate::memory::{CudaBuffer, CudaFloats, word};
use crate::params::RmsNormParams;
use crate::scratch::Quantized;

pub(super) fn rms_norm(
    tools: &mut Tools<'_>,
    (x, weight, eps): (&CudaBuffer, &CudaFloats, f32),
    write: Write,
    out: &mut CudaBuffer,
) -> Result<(), EngineError> {
    expect("norm weight", x.cols, weight.len)?;
    expect("norm output", x.cols, out.cols)?;
    let int8 = match write {
        Write::Set => {
            out.resize(tools.recorder, x.rows)?;
            out.make_int8(tools.recorder)?
        }
        Write::Add => {
            expect("rows of a sum", x.rows, out.rows)?;
            None
        }
    };
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
        adds: u32::from(write == Write::Add),
    };
    Ok(tools.recorder.launch(params.launch(), &params)?)
}
