//! Layout of streamed experts' matrices in slots.

use nestling_core::backend::{MatrixForm, MatrixShape};
use nestling_gpu::{MatrixLayout, PlaneSizes, SLOT_ALIGN, base_ranges};

use crate::matrix_image::{ALIGN, HEADER_BYTES, PlaneOffsets};

/// First index of slabs that contain slots, which distinguishes them from other slabs.
pub(crate) const FIRST_SLAB: usize = 1 << 24;

/// Layout of a matrix in its slot.
#[derive(Clone, Copy, Debug)]
pub struct WgpuMatrixLayout {
    /// Byte offset in the slot, a multiple of 256.
    pub(crate) offset: u64,
    /// Size in bytes.
    pub(crate) bytes: usize,
    pub(crate) planes: PlaneOffsets,
    end: u64,
}

impl MatrixLayout for WgpuMatrixLayout {
    fn of(shape: &MatrixShape, start: u64) -> Option<Self> {
        let offset = start.checked_next_multiple_of(SLOT_ALIGN)?;
        let mut bytes = HEADER_BYTES;
        let mut take = |length: usize| {
            let start = bytes.checked_next_multiple_of(ALIGN)?;
            bytes = start.checked_add(length)?;
            Some(start)
        };
        let sizes = PlaneSizes::of(shape)?;
        match shape.form {
            MatrixForm::Float(_) => take(sizes.first()?).map(drop)?,
            MatrixForm::Nested { planes, layout, codec_bytes, .. } => {
                take(codec_bytes)?;
                for range in base_ranges(&planes, layout, shape.rows, shape.cols)? {
                    take(range.len().next_multiple_of(4))?;
                }
            }
        }
        // Default: 0 denotes a plane without space.
        let planes = sizes.above_first().rooms(take)?.map(|offset| offset.unwrap_or(0));
        Some(Self { offset, bytes, planes, end: offset.checked_add(bytes as u64)? })
    }

    fn end(&self) -> u64 {
        self.end
    }
}
