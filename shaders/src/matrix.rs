//! Weight matrices in memory of the device.

use nestling_core::EngineError;
use nestling_core::weights::MatrixWeights;
use nestling_gpu::{GpuMatrix, NewMatrix, NewPlanes, PlaneMemory, SlotRoom, WeightRange, word};

use crate::device::Memory;
use crate::matrix_image::{MatrixImage, PlaneOffsets};
use crate::matrix_room::{FIRST_SLAB, WgpuMatrixRoom};
use crate::recorder::{Binding, Recorder};

/// Weights with the way to multiply them.
pub type WgpuMatrix = GpuMatrix<WgpuWeights>;

/// Where the planes of a matrix lie.
#[derive(Debug)]
pub struct WgpuWeights {
    /// Rows that one binding can show, in ascending order.
    pub(crate) parts: Vec<MatrixPart>,
    /// Of a matrix in a slot.
    planes: PlaneOffsets,
}

/// Rows of a matrix: header, codec and planes in a slab.
#[derive(Debug)]
pub(crate) struct MatrixPart {
    /// Number of the slab.
    pub slab: usize,
    pub buffer: wgpu::Buffer,
    /// Where the header is.
    pub offset: u64,
    /// The slot that it lies in.
    pub slot: Option<usize>,
    /// Where it lies in no slot.
    _range: Option<WeightRange<Memory>>,
    pub first_row: usize,
    pub rows: usize,
}

impl MatrixPart {
    /// Where the header is, as shaders count.
    pub fn word(&self) -> u32 {
        (self.offset / 4) as u32
    }
}

impl PlaneMemory for WgpuWeights {
    type Recorder = Recorder;
    type Binding = Binding;
    type Room = WgpuMatrixRoom;

    /// In parts where a matrix is larger than a binding.
    fn upload(recorder: &mut Recorder, matrix: NewMatrix<'_>) -> Result<Self, EngineError> {
        let (weights, Recorder { gpu, slabs, .. }) = (matrix.weights, recorder);
        // Shaders count in words of 32 bits.
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
        room: &SlotRoom<Binding, WgpuMatrixRoom>,
        weights: &MatrixWeights,
    ) -> Result<Self, EngineError> {
        let SlotRoom { slot, slab, binding, matrix: room } = room;
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

    /// A shader is told a prefix with each product.
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
