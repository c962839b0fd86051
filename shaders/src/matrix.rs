//! Weight matrices in device memory.

use nestling_core::EngineError;
use nestling_core::weights::MatrixWeights;
use nestling_gpu::{GpuMatrix, NewMatrix, NewPlanes, PlaneMemory, SlotRegion, WeightRange, word};

use crate::device::Memory;
use crate::matrix_image::{MatrixImage, PlaneOffsets};
use crate::matrix_layout::{FIRST_SLAB, WgpuMatrixLayout};
use crate::recorder::{Binding, Recorder};

/// A weight matrix in device memory.
pub type WgpuMatrix = GpuMatrix<WgpuWeights>;

/// Device memory of a matrix's planes.
#[derive(Debug)]
pub struct WgpuWeights {
    /// Parts of the matrix in ascending row order. Each part fits one binding.
    pub(crate) parts: Vec<MatrixPart>,
    /// Offsets of the planes of a matrix in a slot.
    planes: PlaneOffsets,
}

/// A part of a matrix: header, codec and planes of some rows in a slab.
#[derive(Debug)]
pub(crate) struct MatrixPart {
    /// Index of the slab.
    pub slab: usize,
    pub buffer: wgpu::Buffer,
    /// Byte offset of the header in the slab.
    pub offset: u64,
    /// Slot that contains the matrix, if any.
    pub slot: Option<usize>,
    /// Range of the slab, if the matrix is not in a slot.
    _range: Option<WeightRange<Memory>>,
    pub first_row: usize,
    pub rows: usize,
}

impl MatrixPart {
    /// Returns the offset of the header in words.
    pub fn word(&self) -> u32 {
        (self.offset / 4) as u32
    }
}

impl PlaneMemory for WgpuWeights {
    type Recorder = Recorder;
    type Binding = Binding;
    type MatrixLayout = WgpuMatrixLayout;

    /// Splits a matrix into parts if it exceeds a binding.
    fn upload(recorder: &mut Recorder, matrix: NewMatrix<'_>) -> Result<Self, EngineError> {
        let (weights, Recorder { gpu, slabs, .. }) = (matrix.weights, recorder);
        // Shaders use 32-bit sizes.
        word("elements of a row", weights.cols())?;
        word("rows of a matrix", weights.rows())?;
        let (mut parts, mut bytes) = (Vec::new(), Vec::new());
        for image in MatrixImage::of(weights, gpu.binding_bytes_max())? {
            let range = slabs.range(gpu, image.bytes as u64)?;
            let (slab, buffer, offset) = (range.slab(), range.memory().raw.clone(), range.offset());
            image.write(&mut bytes);
            gpu.write(&buffer, offset, &bytes);
            let (first_row, rows, slot) = (image.first_row, image.rows, None);
            let _range = Some(range);
            parts.push(MatrixPart { slab, buffer, offset, slot, _range, first_row, rows });
        }
        Ok(Self { parts, planes: PlaneOffsets::default() })
    }

    fn in_slot(
        recorder: &mut Recorder,
        room: &SlotRegion<Binding, WgpuMatrixLayout>,
        weights: &MatrixWeights,
    ) -> Result<Self, EngineError> {
        let SlotRegion { slot, slab, binding, matrix: room } = room;
        let (buffer, offset) = (binding.buffer.clone(), binding.offset + room.offset);
        let image = MatrixImage::base(weights, &room.planes)?;
        let first_plane = room.planes.into_iter().find(|offset| *offset > 0);
        if image.bytes > first_plane.unwrap_or(room.bytes) {
            let (expected, found) = (format!("{} bytes", room.bytes), image.bytes);
            return Err(EngineError::mismatch("a matrix in a slot", expected, found));
        }
        let mut bytes = Vec::new();
        image.write(&mut bytes);
        recorder.upload(Some(*slot), &buffer, offset, &bytes)?;
        let (slab, slot, rows) = (FIRST_SLAB + slab, Some(*slot), image.rows);
        let part = MatrixPart { slab, buffer, offset, slot, _range: None, first_row: 0, rows };
        Ok(Self { parts: vec![part], planes: room.planes })
    }

    /// Copies planes only, because products receive the prefix as a parameter.
    fn add(&mut self, recorder: &mut Recorder, new: NewPlanes<'_>) -> Result<(), EngineError> {
        for plane in new.planes {
            let room = Some(self.planes[plane.plane.index()]).filter(|offset| *offset > 0);
            let at = plane.room(room)? as u64;
            // A matrix in a slot has one part.
            for MatrixPart { slot, buffer, offset, .. } in &self.parts {
                recorder.upload(*slot, buffer, offset + at, plane.bytes)?;
            }
        }
        Ok(())
    }
}
