//! Quantization of activations to int8.

use nestling_core::EngineError;
use nestling_formats::nested::GROUP;
use nestling_gpu::Quantize;

use crate::backend::WgpuBackend;
use crate::params;
use crate::recorder::{Binding, Cost, spread};

pub(super) fn quantize(
    WgpuBackend { recorder, pipelines, .. }: &mut WgpuBackend,
    Quantize { x, out, rows, cols, parts, part_stride, stride, groups }: &Quantize<Binding>,
) -> Result<(), EngineError> {
    let params = params::Quantize {
        rows: *rows,
        cols: *cols,
        parts: *parts,
        part_stride: *part_stride,
        stride: *stride,
        rotated: 0,
        padding: [0; 2],
    };
    let bindings = [x.clone(), out.values.clone(), out.scales.clone()];
    let cost = Cost::elements(spread(groups.div_ceil(64)), (groups * GROUP) as u64);
    Ok(recorder.dispatch(&pipelines.quantize, &bindings, &params, cost)?)
}
