//! Scratch memory of a device.

use nestling_core::EngineError;

use crate::device::Device;
use crate::memory::QuantizedActivations;
use crate::scratch::{self, QuantizedRoom, ScratchRoom};

/// Scratch memory of a device. Its contents are valid during one operation.
pub trait DeviceScratch: Device {
    /// Returns scratch memory for at least `count` elements of 4 bytes.
    ///
    /// # Errors
    /// Fails like [`Storage::allocate`](crate::Storage::allocate).
    fn scratch(&mut self, room: ScratchRoom, count: usize) -> Result<Self::Binding, EngineError> {
        let mut memory = self.state().scratch.room(room).take();
        let grown = scratch::grow(self, &mut memory, count);
        *self.state().scratch.room(room) = memory;
        grown
    }

    /// Returns scratch memory for at least `groups` quantization groups.
    ///
    /// # Errors
    /// Fails like [`Storage::allocate`](crate::Storage::allocate).
    fn quantized_scratch(
        &mut self,
        room: QuantizedRoom,
        groups: usize,
    ) -> Result<QuantizedActivations<Self::Binding>, EngineError> {
        let values = self.scratch(room.values, 8 * groups)?;
        Ok(QuantizedActivations { values, scales: self.scratch(room.scales, groups)? })
    }
}

impl<D: Device> DeviceScratch for D {}
