//! Scratch memory of a device.

use nestling_core::EngineError;

use crate::allocation::Allocation;
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

    /// Returns contiguous parts of scratch memory of the given sizes in bytes, multiples of 4.
    ///
    /// # Errors
    /// Fails like [`Storage::allocate`](crate::Storage::allocate).
    fn scratch_ranges(
        &mut self,
        room: ScratchRoom,
        sizes: &[u64],
    ) -> Result<Vec<Self::Binding>, EngineError> {
        let bytes: u64 = sizes.iter().sum();
        self.scratch(room, bytes.div_ceil(4) as usize)?;
        let mut offset = 0;
        let mut range = |bytes: &u64| {
            let range = self.scratch_range(room, offset, *bytes);
            offset += bytes;
            range
        };
        sizes.iter().map(&mut range).collect()
    }

    /// Returns a part of scratch memory that was requested before.
    ///
    /// # Errors
    /// Fails like [`Storage::allocate`](crate::Storage::allocate).
    fn scratch_range(
        &mut self,
        room: ScratchRoom,
        offset: u64,
        bytes: u64,
    ) -> Result<Self::Binding, EngineError> {
        if let Some(memory) = self.state().scratch.room(room) {
            return Ok(memory.range(offset, bytes));
        }
        self.scratch(room, (offset + bytes).div_ceil(4) as usize)
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
