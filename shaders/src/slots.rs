//! Slots for streamed experts in device memory.

use nestling_core::EngineError;
use nestling_core::backend::MatrixShape;
use nestling_gpu::{CommandRecorder, SlotAllocation, SlotDevice};

use crate::backend::WgpuBackend;
use crate::device::Memory;

impl SlotDevice for WgpuBackend {
    // A trade-off: each slab adds a dispatch to every product, but the budget only shrinks by whole slabs.
    const SLABS: usize = 2;
    const KEEPS_SMALLER_SLABS: bool = false;

    fn takes_in_slots(_shape: &MatrixShape) -> bool {
        true
    }

    fn slot_bytes_left(&self) -> u64 {
        // The budget refuses allocations that exceed it.
        u64::MAX
    }

    fn allocate_slots(&mut self, bytes: u64) -> Result<SlotAllocation<Memory>, EngineError> {
        SlotAllocation::of(self.gpu.slots(bytes))
    }

    fn release_slots(&mut self) -> Result<(), EngineError> {
        Ok(self.recorder.submit()?)
    }
}
