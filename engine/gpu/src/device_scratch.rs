//! Memory that operations use among themselves, of a device.

use nestling_core::EngineError;

use crate::device::Device;
use crate::memory::Quantized;
use crate::scratch::{self, QuantizedRoom, ScratchRoom};

/// A device's memory between operations; what is in it lasts for one.
pub trait DeviceScratch: Device {
    /// Some of it, of at least so many elements of 4 bytes.
    ///
    /// # Errors
    /// As [`Storage::allocate`](crate::Storage::allocate).
    fn scratch(&mut self, room: ScratchRoom, count: usize) -> Result<Self::Binding, EngineError> {
        let mut memory = self.state().scratch.room(room).take();
        let grown = scratch::grow(self, &mut memory, count);
        *self.state().scratch.room(room) = memory;
        grown
    }

    /// Some of it for at least so many quantization groups.
    ///
    /// # Errors
    /// As [`Storage::allocate`](crate::Storage::allocate).
    fn quantized_scratch(
        &mut self,
        room: QuantizedRoom,
        groups: usize,
    ) -> Result<Quantized<Self::Binding>, EngineError> {
        let values = self.scratch(room.values, 8 * groups)?;
        Ok(Quantized { values, scales: self.scratch(room.scales, groups)? })
    }
}

impl<D: Device> DeviceScratch for D {}
