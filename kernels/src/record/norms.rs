//! RMSNorm of rows and of parts of rows. Also writes int8 rows if products take them.

use nestling_core::EngineError;
use nestling_core::backend::Write;
use nestling_gpu::{NormParts, QuantizedActivations, RmsNorm};

use crate::driver::Address;
use crate::params::{NormPartParams, RmsNormParams};
use crate::recorder::Recorder;

pub(super) fn rms_norm(
    recorder: &mut Recorder,
    &RmsNorm { x, weight, out, int8, rows, cols, eps, write }: &RmsNorm<Address>,
) -> Result<(), EngineError> {
    let QuantizedActivations { values, scales } =
        int8.unwrap_or(QuantizedActivations { values: 0, scales: 0 });
    let adds = u32::from(write == Write::Add);
    let params = RmsNormParams { x, weight, out, values, scales, rows, cols, eps, adds };
    Ok(recorder.launch(params.launch(), &params)?)
}

pub(super) fn norm_parts(
    recorder: &mut Recorder,
    &NormParts { weight, x, count, parts, stride, first, length, eps }: &NormParts<Address>,
) -> Result<(), EngineError> {
    let params = NormPartParams {
        x,
        weight,
        count,
        parts,
        row_stride: stride,
        part_stride: length,
        first,
        length,
        eps,
        padding: 0,
    };
    Ok(recorder.launch(params.launch(), &params)?)
}
