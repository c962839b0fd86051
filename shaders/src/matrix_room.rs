//! Where matrices of streamed experts lie in slots.

use nestling_core::backend::{MatrixForm, MatrixShape};
use nestling_formats::Plane;
use nestling_formats::nested::{base_parts, plane_bytes};
use nestling_gpu::{MatrixRoom, SLOT_ALIGN};

use crate::matrix_image::{ALIGN, HEADER_BYTES, PlaneOffsets};

/// Slabs of slots are told from other slabs by numbers from here on.
pub(crate) const FIRST_SLAB: usize = 1 << 24;

/// Where a matrix lies in its slot.
#[derive(Clone, Copy, Debug)]
pub struct WgpuMatrixRoom {
    /// First byte, a multiple of 256.
    pub(crate) offset: u64,
    /// Bytes that there are.
    pub(crate) bytes: usize,
    pub(crate) planes: PlaneOffsets,
    end: u64,
}

impl MatrixRoom for WgpuMatrixRoom {
    fn of(shape: &MatrixShape, start: u64) -> Option<Self> {
        let offset = start.checked_next_multiple_of(SLOT_ALIGN)?;
        let mut planes = PlaneOffsets::default();
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
