//! Slots for streamed experts in memory of the device.

use std::ops::Range;

use nestling_core::EngineError;
use nestling_core::backend::{
    CopyFence, FeedForward, HostLink, HostPlane, MatrixForm, MatrixShape, PlanePart,
};
use nestling_core::weights::{ActivationMode, MatrixWeights};
use nestling_formats::nested::plane_bytes;
use nestling_formats::{MatrixKind, Plane};
use nestling_gpu::{MatrixRoom, SLOT_ALIGN, SlotAllocation, SlotDevice, SlotRoom, expect};

use crate::backend::CudaBackend;
use crate::driver::{Address, DeviceMemory};
use crate::error::CudaError;
use crate::link;
use crate::matrix::{CODEC_OFFSET, CudaMatrix};

/// Where a matrix lies in its slot, in bytes from the slot's beginning.
#[derive(Clone, Copy, Debug)]
pub struct CudaMatrixRoom {
    head: u64,
    /// All elements of a float matrix are in the place of the first plane.
    planes: [Option<u64>; Plane::ALL.len()],
    head_bytes: u64,
    end: u64,
}

impl MatrixRoom for CudaMatrixRoom {
    fn of(shape: &MatrixShape, start: u64) -> Option<Self> {
        let mut end = start;
        let mut place = |bytes: usize| {
            let start = end.checked_next_multiple_of(SLOT_ALIGN)?;
            end = start.checked_add(bytes as u64)?;
            Some(start)
        };
        let mut planes = [None; Plane::ALL.len()];
        let codec_bytes = match shape.form {
            MatrixForm::Float(_) => 0,
            MatrixForm::Nested { codec_bytes, .. } => codec_bytes,
        };
        let head_bytes = CODEC_OFFSET as usize + codec_bytes;
        let head = place(head_bytes)?;
        match shape.form {
            MatrixForm::Float(dtype) => {
                let count = shape.rows.checked_mul(shape.cols)?;
                planes[0] = Some(place(count.checked_mul(dtype.bytes())?)?);
            }
            MatrixForm::Nested { layout, level, .. } => {
                for plane in Plane::ALL.into_iter().filter(|plane| plane.level() <= level) {
                    let bytes = plane_bytes(layout, shape.rows, shape.cols, plane)?;
                    planes[plane.index()] = Some(place(bytes)?);
                }
            }
        }
        Some(Self { head, planes, head_bytes: head_bytes as u64, end })
    }

    fn end(&self) -> u64 {
        self.end
    }
}

/// Where a slot's matrix lies in memory of the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Its description and codec, and their bytes.
    pub head: Address,
    pub head_bytes: u64,
    /// Its planes.
    pub planes: [Option<Address>; Plane::ALL.len()],
}

impl Room {
    /// Room of a matrix in the slot that begins at `start`.
    fn in_slot(start: Address, matrix: &CudaMatrixRoom) -> Self {
        Self {
            head: start + matrix.head,
            head_bytes: matrix.head_bytes,
            planes: matrix.planes.map(|plane| plane.map(|plane| start + plane)),
        }
    }
}

/// Where the parts of an expert's plane lie on the device, each with its bytes of the plane.
fn plane_places(
    weights: &FeedForward<CudaBackend>,
    parts: &[PlanePart],
) -> Result<Vec<(Address, Range<usize>)>, EngineError> {
    let place = |PlanePart { matrix, plane, range }: &PlanePart| {
        let linear = match matrix {
            MatrixKind::Gate => &weights.gate,
            MatrixKind::Up => &weights.up,
            _ => &weights.down,
        };
        let (address, bytes) = linear.matrix.plane(*plane)?;
        expect("bytes of a plane", bytes, range.len())?;
        Ok((address, range.clone()))
    };
    parts.iter().map(place).collect()
}

impl SlotDevice for CudaBackend {
    type MatrixRoom = CudaMatrixRoom;

    const SLABS: usize = 8;
    const KEEPS_SMALLER_SLABS: bool = true;

    fn takes_in_slots(shape: &MatrixShape) -> bool {
        // Streamed floats are taken where they arrive.
        matches!(shape.form, MatrixForm::Nested { .. })
    }

    fn slot_bytes_left(&self) -> u64 {
        // What steps and sessions work with has its room.
        self.driver.budget_left().saturating_sub(self.driver.work_kept())
    }

    fn allocate_slots(&mut self, bytes: u64) -> Result<SlotAllocation<DeviceMemory>, EngineError> {
        SlotAllocation::of(self.driver.allocate("experts", bytes), CudaError::is_full)
    }

    fn release_slots(&mut self) -> Result<(), EngineError> {
        Ok(self.recorder.finish_all()?)
    }

    fn place_in_slot(
        &mut self,
        room: SlotRoom<Self>,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<CudaMatrix, EngineError> {
        let room = Room::in_slot(room.binding, &room.matrix);
        CudaMatrix::in_slot(&mut self.recorder, room, weights, activations)
    }

    fn add_plane(
        &mut self,
        matrix: &mut CudaMatrix,
        plane: Plane,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        matrix.add_plane(&mut self.recorder, plane, bytes)
    }

    fn fetch_plane(
        &mut self,
        weights: &FeedForward<Self>,
        parts: &[PlanePart],
        bytes: u64,
    ) -> Result<Option<HostPlane>, EngineError> {
        let places = plane_places(weights, parts)?;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let block = self.recorder.fetch(&places, bytes)?;
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
