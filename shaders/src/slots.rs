//! Slots for streamed experts in memory of the device.

use nestling_core::EngineError;
use nestling_core::backend::{MatrixForm, MatrixShape};
use nestling_core::weights::{ActivationMode, MatrixWeights};
use nestling_formats::Plane;
use nestling_formats::nested::{base_parts, plane_bytes};
use nestling_gpu::{MatrixRoom, SLOT_ALIGN, SlotAllocation, SlotDevice, SlotRoom};

use crate::backend::WgpuBackend;
use crate::device::Memory;
use crate::error::WgpuError;
use crate::matrix::WgpuMatrix;
use crate::matrix_image::{ALIGN, HEADER_BYTES};

/// Slabs of slots are told from other slabs by numbers from here on.
pub(crate) const FIRST_SLAB: usize = 1 << 24;

/// Where the planes of a matrix lie from its place on, in bytes; 0 for those without a place.
pub(crate) type PlanePlaces = [usize; Plane::ALL.len()];

/// Where a matrix lies in its slot.
#[derive(Clone, Copy, Debug)]
pub struct WgpuMatrixRoom {
    /// First byte, a multiple of 256.
    pub(crate) offset: u64,
    /// Bytes that there are.
    pub(crate) bytes: usize,
    pub(crate) planes: PlanePlaces,
    end: u64,
}

impl MatrixRoom for WgpuMatrixRoom {
    fn of(shape: &MatrixShape, start: u64) -> Option<Self> {
        let offset = start.checked_next_multiple_of(SLOT_ALIGN)?;
        let mut planes = PlanePlaces::default();
        let mut bytes = HEADER_BYTES;
        let mut place = |length: usize| {
            let start = bytes.checked_next_multiple_of(ALIGN)?;
            bytes = start.checked_add(length)?;
            Some(start)
        };
        match shape.form {
            MatrixForm::Float(dtype) => {
                place(shape.rows.checked_mul(shape.cols)?.checked_mul(dtype.bytes())?)?;
            }
            MatrixForm::Nested { layout, codec_bytes, level, .. } => {
                let parts = base_parts(layout, shape.rows, shape.cols)?;
                let base = [parts.row_scales, parts.tile_tables, parts.steps, parts.step_high];
                place(codec_bytes)?;
                for range in base.into_iter().chain([parts.codes]) {
                    place(range.len().next_multiple_of(4))?;
                }
                for plane in Plane::ALL.into_iter().skip(1) {
                    if plane.level() <= level {
                        let length = plane_bytes(layout, shape.rows, shape.cols, plane)?;
                        planes[plane.index()] = place(length)?;
                    }
                }
            }
        }
        Some(Self { offset, bytes, planes, end: offset.checked_add(bytes as u64)? })
    }

    fn end(&self) -> u64 {
        self.end
    }
}

impl SlotDevice for WgpuBackend {
    type MatrixRoom = WgpuMatrixRoom;

    // Each slab is one dispatch more for every product, and what a smaller budget costs at once.
    const SLABS: usize = 2;
    const KEEPS_SMALLER_SLABS: bool = false;

    fn takes_in_slots(_shape: &MatrixShape) -> bool {
        true
    }

    fn slot_bytes_left(&self) -> u64 {
        // The budget refuses what it has no room for.
        u64::MAX
    }

    fn allocate_slots(&mut self, bytes: u64) -> Result<SlotAllocation<Memory>, EngineError> {
        SlotAllocation::of(self.gpu.slots(bytes), WgpuError::is_full)
    }

    fn release_slots(&mut self) -> Result<(), EngineError> {
        Ok(self.recorder.submit()?)
    }

    fn place_in_slot(
        &mut self,
        room: SlotRoom<Self>,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<WgpuMatrix, EngineError> {
        WgpuMatrix::in_slot(&mut self.recorder, room, weights, activations)
    }

    fn add_plane(
        &mut self,
        matrix: &mut WgpuMatrix,
        plane: Plane,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        matrix.add_plane(&mut self.recorder, plane, bytes)
    }
}
