//! Quantization of activations to int8.

use nestling_core::EngineError;
use nestling_formats::nested::GROUP;

use crate::device::Device;
use crate::device_scratch::DeviceScratch;
use crate::memory::{GpuBuffer, QuantizedActivations};
use crate::operation::{Operation, Quantize};
use crate::scratch::QuantizedRoom;
use crate::storage::word;

/// Parts of rows that are quantized separately.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    /// Number of heads in a row.
    pub count: usize,
    /// Distance between the starts of two heads, in elements.
    pub width: usize,
    /// Number of elements quantized at the start of each head.
    pub inputs: usize,
}

/// Quantizes all rows. The output has one row for each head.
pub(super) fn quantize<D: Device>(
    device: &mut D,
    x: &GpuBuffer<D>,
    heads: Heads,
) -> Result<QuantizedActivations<D::Binding>, EngineError> {
    let groups = x.rows * heads.count * heads.inputs.div_ceil(GROUP);
    let out = device.quantized_scratch(QuantizedRoom::INPUT, groups)?;
    device.record(Operation::Quantize(Quantize {
        x: x.binding(),
        out: out.clone(),
        rows: word("rows", x.rows)?,
        cols: word("columns", heads.inputs)?,
        parts: word("heads", heads.count)?,
        part_stride: word("columns", heads.width)?,
        stride: word("columns", x.cols)?,
        groups,
    }))?;
    Ok(out)
}
