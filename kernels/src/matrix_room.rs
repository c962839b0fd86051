//! Where matrices of streamed experts lie in slots.

use nestling_core::backend::{MatrixForm, MatrixShape};
use nestling_formats::Plane;
use nestling_gpu::{MatrixRoom, PlaneSizes, SLOT_ALIGN};

use crate::driver::Address;

/// Bytes before the codec in a matrix's head: what kernels read first.
pub(crate) const CODEC_OFFSET: u64 = 256;

/// Where a matrix lies in its slot, in bytes from the slot's beginning.
#[derive(Clone, Copy, Debug)]
pub struct CudaMatrixRoom {
    head: u64,
    /// All elements of a float matrix are in the room of the first plane.
    planes: [Option<u64>; Plane::ALL.len()],
    head_bytes: u64,
    end: u64,
}

impl MatrixRoom for CudaMatrixRoom {
    fn of(shape: &MatrixShape, start: u64) -> Option<Self> {
        let mut end = start;
        let mut take = |bytes: usize| {
            let start = end.checked_next_multiple_of(SLOT_ALIGN)?;
            end = start.checked_add(bytes as u64)?;
            Some(start)
        };
        let codec_bytes = match shape.form {
            MatrixForm::Float(_) => 0,
            MatrixForm::Nested { codec_bytes, .. } => codec_bytes,
        };
        let head_bytes = CODEC_OFFSET as usize + codec_bytes;
        let head = take(head_bytes)?;
        let planes = PlaneSizes::of(shape)?.rooms(take)?;
        Some(Self { head, planes, head_bytes: head_bytes as u64, end })
    }

    fn end(&self) -> u64 {
        self.end
    }
}

/// Where a slot's matrix lies in memory of the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotAddresses {
    /// Its description and codec, and their bytes.
    pub head: Address,
    pub head_bytes: u64,
    /// Its planes.
    pub planes: [Option<Address>; Plane::ALL.len()],
}

impl SlotAddresses {
    /// Room of a matrix in the slot that begins at `start`.
    pub fn in_slot(start: Address, matrix: &CudaMatrixRoom) -> Self {
        Self {
            head: start + matrix.head,
            head_bytes: matrix.head_bytes,
            planes: matrix.planes.map(|plane| plane.map(|plane| start + plane)),
        }
    }
}
