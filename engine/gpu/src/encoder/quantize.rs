//! Activations in int8.

use nestling_core::EngineError;
use nestling_formats::nested::GROUP;

use crate::device::Device;
use crate::device_scratch::DeviceScratch;
use crate::memory::{GpuBuffer, Quantized};
use crate::operation::{Operation, Quantize};
use crate::scratch::QuantizedRoom;
use crate::storage::word;

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
pub(super) fn quantize<D: Device>(
    device: &mut D,
    x: &GpuBuffer<D>,
    heads: Heads,
) -> Result<Quantized<D::Binding>, EngineError> {
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
