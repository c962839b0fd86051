//! Slots for streamed experts in device memory.

use std::ops::Range;

use nestling_core::EngineError;
use nestling_core::backend::{
    CopyFence, FeedForward, HostLink, HostPlane, MatrixForm, MatrixShape, PlanePart,
};
use nestling_formats::MatrixKind;
use nestling_gpu::{SlotAllocation, SlotDevice, expect};

use crate::backend::CudaBackend;
use crate::driver::{Address, DeviceMemory};
use crate::link;

/// Returns the device addresses of the parts of an expert's plane, each with its byte range in the plane.
fn plane_addresses(
    weights: &FeedForward<CudaBackend>,
    parts: &[PlanePart],
) -> Result<Vec<(Address, Range<usize>)>, EngineError> {
    let address = |PlanePart { matrix, plane, range }: &PlanePart| {
        let linear = match matrix {
            MatrixKind::Gate => weights.gate_or_up(),
            MatrixKind::Up => &weights.up,
            _ => &weights.down,
        };
        expect("bytes of a plane", linear.matrix.slot_plane_bytes(*plane)?, range.len())?;
        Ok((linear.matrix.weights.plane(*plane)?, range.clone()))
    };
    parts.iter().map(address).collect()
}

impl SlotDevice for CudaBackend {
    const SLABS: usize = 8;
    const KEEPS_SMALLER_SLABS: bool = true;

    fn takes_in_slots(shape: &MatrixShape) -> bool {
        // Streamed float matrices are uploaded without slots.
        matches!(shape.form, MatrixForm::Nested { .. })
    }

    fn slot_bytes_left(&self) -> u64 {
        // Memory set aside for steps and sessions is excluded.
        self.driver.budget_left().saturating_sub(self.driver.work_kept())
    }

    fn allocate_slots(&mut self, bytes: u64) -> Result<SlotAllocation<DeviceMemory>, EngineError> {
        SlotAllocation::of(self.driver.allocate("experts", bytes))
    }

    fn release_slots(&mut self) -> Result<(), EngineError> {
        Ok(self.recorder.finish_all()?)
    }

    fn fetch_plane(
        &mut self,
        weights: &FeedForward<Self>,
        parts: &[PlanePart],
        bytes: u64,
    ) -> Result<Option<HostPlane>, EngineError> {
        let addresses = plane_addresses(weights, parts)?;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let block = self.recorder.fetch(&addresses, bytes)?;
        Ok(block.map(|block| block as HostPlane))
    }

    fn begin_async_copies(&mut self) -> Result<(), EngineError> {
        Ok(self.recorder.begin_async_copies()?)
    }

    fn end_async_copies(&mut self) -> Result<CopyFence, EngineError> {
        Ok(CopyFence(self.recorder.end_async_copies()?))
    }

    fn completed_copies(&mut self, awaited: CopyFence) -> Result<CopyFence, EngineError> {
        Ok(CopyFence(self.recorder.completed_copies(awaited.0)?))
    }

    fn host_link(&mut self, slots: Address, bytes: u64) -> Result<Option<HostLink>, EngineError> {
        if self.host_bytes() == 0 {
            return Ok(None);
        }
        Ok(Some(link::measure(&self.driver, slots, bytes)?))
    }
}
