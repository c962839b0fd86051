//! Memory that operations use among themselves. It grows; what it holds lasts for one operation.

use crate::driver::{Address, DeviceMemory};
use crate::error::CudaError;
use crate::recorder::Recorder;

/// Memory of one purpose.
#[derive(Default)]
pub(crate) struct Room {
    memory: Option<DeviceMemory>,
}

impl Room {
    /// At least so many elements of 4 bytes, with unspecified contents.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn of(&mut self, recorder: &mut Recorder, elements: usize) -> Result<Address, CudaError> {
        let bytes = 4 * elements as u64;
        if let Some(memory) = self.memory.as_ref().filter(|memory| memory.bytes() >= bytes) {
            return Ok(memory.address());
        }
        let memory = recorder.driver.allocate("scratch", bytes.next_power_of_two())?;
        recorder.retire(self.memory.take());
        Ok(self.memory.insert(memory).address())
    }
}

/// Activations in int8 as products take them: values `[rows, groups, 32]` bytes, and scales
/// `[rows, groups]`.
#[derive(Default)]
pub(crate) struct QuantizedRoom {
    values: Room,
    scales: Room,
}

/// Quantized activations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quantized {
    pub values: Address,
    pub scales: Address,
}

impl QuantizedRoom {
    /// At least so many groups.
    ///
    /// # Errors
    /// As [`Room::of`].
    pub fn of(&mut self, recorder: &mut Recorder, groups: usize) -> Result<Quantized, CudaError> {
        Ok(Quantized {
            values: self.values.of(recorder, 8 * groups)?,
            scales: self.scales.of(recorder, groups)?,
        })
    }
}

/// What products and feed-forward parts work with.
#[derive(Default)]
pub(crate) struct Scratch {
    /// The input of a product.
    pub x: QuantizedRoom,
    /// Gate and up of feed-forward parts, `[rows, 2 I]`.
    pub gate_up: Room,
    /// The input of their second product, in int8 and as it is.
    pub inner: QuantizedRoom,
    pub inner_float: Room,
    /// Parts of attention that are added up.
    pub attended: Room,
    /// Queries, keys and values of a DeltaNet layer behind its convolution.
    pub mixed: Room,
    /// The largest of parts of rows and their columns, and of whole rows.
    pub orders: Room,
    pub columns: Room,
    pub best: Room,
    /// Blocks that kernels make for experts.
    pub blocks: Room,
    /// What the router's choice is made from.
    pub router_logits: Room,
}
