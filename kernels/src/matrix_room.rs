//! Where matrices of streamed experts lie in slots.

use nestling_core::backend::{MatrixForm, MatrixShape};
use nestling_formats::Plane;
use nestling_formats::nested::plane_bytes;
use nestling_gpu::{MatrixRoom, SLOT_ALIGN};

use crate::driver::Address;

/// Bytes before the codec in a matrix's head: what kernels read first.
pub(crate) const CODEC_OFFSET: u64 = 256;

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
