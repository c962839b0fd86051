//! Layout of streamed experts' matrices in slots.

use nestling_core::backend::{MatrixForm, MatrixShape};
use nestling_formats::Plane;
use nestling_gpu::{MatrixLayout, PlaneSizes, SLOT_ALIGN};

use crate::driver::Address;

/// Offset of the codec in a matrix's head, in bytes. The descriptor precedes it.
pub(crate) const CODEC_OFFSET: u64 = 256;

/// Layout of a matrix in its slot, in bytes from the slot's start.
#[derive(Clone, Copy, Debug)]
pub struct CudaMatrixLayout {
    head: u64,
    /// Offsets of the planes. A float matrix uses only the first.
    planes: [Option<u64>; Plane::ALL.len()],
    head_bytes: u64,
    end: u64,
}

impl MatrixLayout for CudaMatrixLayout {
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

/// Device addresses of a matrix in a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotAddresses {
    /// Descriptor and codec, and their size in bytes.
    pub head: Address,
    pub head_bytes: u64,
    /// Planes.
    pub planes: [Option<Address>; Plane::ALL.len()],
}

impl SlotAddresses {
    /// Returns the addresses of a matrix in the slot at address `start`.
    pub fn in_slot(start: Address, matrix: &CudaMatrixLayout) -> Self {
        Self {
            head: start + matrix.head,
            head_bytes: matrix.head_bytes,
            planes: matrix.planes.map(|plane| plane.map(|plane| start + plane)),
        }
    }
}
