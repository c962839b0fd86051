//! Quantization of activations to int8.

use nestling_core::EngineError;
use nestling_gpu::Quantize;

use crate::driver::Address;
use crate::params::QuantizeParams;
use crate::recorder::Recorder;

pub(super) fn quantize(
    recorder: &mut Recorder,
    &Quantize { x, out, rows, cols, parts, part_stride, stride, .. }: &Quantize<Address>,
) -> Result<(), EngineError> {
    let (values, scales) = (out.values, out.scales);
    let params =
        QuantizeParams { x, values, scales, rows, cols, parts, part_stride, stride, is_rotated: 0 };
    Ok(recorder.launch(params.launch(), &params)?)
}
