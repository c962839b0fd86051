//! Memory that operations use among themselves. It grows; what it holds lasts for one operation.

use crate::device::{Gpu, Memory};
use crate::error::WgpuError;
use crate::recorder::Binding;

/// Memory of one purpose.
#[derive(Debug, Default)]
pub(crate) struct Room {
    buffer: Option<Memory>,
}

impl Room {
    /// At least so many elements of 4 bytes, with unspecified contents.
    ///
    /// # Errors
    /// [`WgpuError::Limit`] for more than a shader sees at once; [`WgpuError::OutOfMemory`].
    pub fn of(&mut self, gpu: &Gpu, elements: usize) -> Result<Binding, WgpuError> {
        let bytes = 4 * elements as u64;
        if let Some(buffer) = self.buffer.as_ref().filter(|buffer| buffer.size() >= bytes) {
            return Ok(Binding::from(buffer));
        }
        self.buffer = None;
        // Under a budget nothing is taken that was not promised.
        let roomy = match gpu.ledger.budget() {
            Some(_) => bytes,
            None => bytes.next_power_of_two().min(gpu.binding_bytes_max()).max(bytes),
        };
        let buffer = self.buffer.insert(gpu.buffer("scratch", roomy)?);
        Ok(Binding::from(&*buffer))
    }
}

/// Activations in int8 as products take them: values `[rows, groups, 8]` words, and scales
/// `[rows, groups]`.
#[derive(Debug, Default)]
pub(crate) struct QuantizedRoom {
    values: Room,
    scales: Room,
}

/// Quantized activations.
#[derive(Clone, Debug)]
pub(crate) struct Quantized {
    pub values: Binding,
    pub scales: Binding,
}

impl QuantizedRoom {
    /// At least so many groups.
    ///
    /// # Errors
    /// As [`Room::of`].
    pub fn of(&mut self, gpu: &Gpu, groups: usize) -> Result<Quantized, WgpuError> {
        Ok(Quantized {
            values: self.values.of(gpu, 8 * groups)?,
            scales: self.scales.of(gpu, groups)?,
        })
    }
}

/// What products and feed-forward parts work with.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// The input of a product.
    pub x: QuantizedRoom,
    /// Gate and up of feed-forward parts, `[rows, 2 I]`.
    pub gate_up: Room,
    /// The input of their second product, in int8 and as it is.
    pub inner: QuantizedRoom,
    pub inner_float: Room,
    /// Blocks that shaders make, of gates and ups and of downs, and their pairs of rows.
    pub blocks: Room,
    /// What blocks of pages give an attending head.
    pub parts: Room, // [rows, heads, blocks, 2 + elements of a value]
    /// Queries, keys and values of DeltaNet layers behind their convolution.
    pub mixed: Room, // [rows, channels]
    /// The largest of parts of rows and their columns, and of whole rows.
    pub orders: Room, // [rows, parts]
    pub columns: Room, // [rows, parts]
    pub best: Room,    // [rows]
    /// Stands in where a product has no bias.
    pub none: Room,
}
