//! Weight matrices in memory of the device.

use nestling_core::EngineError;
use nestling_core::backend::{HoldsLevels, Shape, Shaped};
use nestling_core::weights::{ActivationMode, MatrixWeights};
use nestling_formats::{Level, Plane};
use nestling_gpu::{DeviceMatrix, HeldLevels, ProductForm, SlotPlanes, SlotRoom, word};

use crate::backend::WgpuBackend;
use crate::device::Gpu;
use crate::matrix_image::MatrixImage;
use crate::recorder::Recorder;
use crate::slabs::{Place, Slabs};
use crate::slots::{FIRST_SLAB, PlanePlaces};

/// Weights with the way to multiply them.
#[derive(Debug)]
pub struct WgpuMatrix {
    pub(crate) form: ProductForm,
    /// Ascending rows.
    pub(crate) parts: Vec<MatrixPart>,
    levels: HeldLevels,
    /// What is known of one in a slot, whose planes come one by one.
    slot: Option<InSlot>,
}

/// A nested matrix in a slot.
#[derive(Debug)]
struct InSlot {
    /// Places of planes from the beginning of the matrix on, in bytes.
    places: PlanePlaces,
    planes: SlotPlanes,
}

/// Rows of a matrix that lie together.
#[derive(Debug)]
pub(crate) struct MatrixPart {
    /// Where their image is.
    pub place: Place,
    /// The first row, a multiple of 16.
    pub first_row: usize,
    /// How many.
    pub rows: usize,
}

impl WgpuMatrix {
    /// Uploads a matrix, before whatever is submitted next.
    ///
    /// # Errors
    /// A device whose memory is full; weights in a form that no kernel reads.
    pub(crate) fn new(
        gpu: &Gpu,
        slabs: &Slabs,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<Self, EngineError> {
        // Kernels count in 32 bits.
        word("elements of a row", weights.cols())?;
        word("rows of a matrix", weights.rows())?;
        let mut parts = Vec::new();
        let mut bytes = Vec::new();
        for image in MatrixImage::of(weights, gpu.binding_bytes_max())? {
            let place = slabs.place(gpu, image.bytes as u64)?;
            image.write(&mut bytes);
            gpu.write(&place.buffer, place.offset, &bytes);
            parts.push(MatrixPart { place, first_row: image.first_row, rows: image.rows });
        }
        let levels = HeldLevels::of(weights);
        Ok(Self::of(weights, activations, parts, levels))
    }

    fn of(
        weights: &MatrixWeights,
        activations: ActivationMode,
        parts: Vec<MatrixPart>,
        levels: HeldLevels,
    ) -> Self {
        let form = ProductForm::of(weights, activations);
        Self { form, parts, levels, slot: None }
    }

    /// Puts a matrix into a slot, with the planes that it has, behind all that was recorded.
    ///
    /// # Errors
    /// A matrix that does not fit its place; a device that is lost.
    pub(crate) fn in_slot(
        recorder: &mut Recorder,
        room: SlotRoom<WgpuBackend>,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<Self, EngineError> {
        let SlotRoom { slot, slab, binding, matrix: room } = room;
        let (buffer, offset) = (binding.buffer, binding.offset + room.offset);
        let image = MatrixImage::base(weights, &room.planes)?;
        let first_plane = room.planes.into_iter().find(|place| *place > 0);
        if image.bytes > first_plane.unwrap_or(room.bytes) {
            let (expected, found) = (format!("{} bytes", room.bytes), image.bytes);
            return Err(EngineError::mismatch("a matrix in a slot", expected, found));
        }
        let mut bytes = Vec::new();
        image.write(&mut bytes);
        recorder.upload(Some(slot), &buffer, offset, &bytes)?;
        let place = Place::of_slot(FIRST_SLAB + slab, buffer, slot, offset);
        let rows = image.rows;
        let parts = vec![MatrixPart { place, first_row: 0, rows }];
        let levels = HeldLevels::of(weights);
        let mut matrix = Self::of(weights, activations, parts, levels);
        if let MatrixWeights::Nested(nested) = weights {
            matrix.slot = Some(InSlot { places: room.planes, planes: SlotPlanes::base(nested)? });
            for (plane, bytes) in SlotPlanes::above_base(nested) {
                matrix.add_plane(recorder, plane, bytes)?;
            }
            matrix.set_levels();
        }
        Ok(matrix)
    }

    /// Puts one plane more into the slot, behind all that was recorded.
    ///
    /// # Errors
    /// A matrix that is in no slot or lacks the plane before; a plane of another size or without a
    /// place; a device that is lost.
    pub(crate) fn add_plane(
        &mut self,
        recorder: &mut Recorder,
        plane: Plane,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        let (Some(slot), [part]) = (&mut self.slot, self.parts.as_slice()) else {
            return Err(EngineError::mismatch(
                "plane of a matrix",
                "a matrix in a slot",
                "another",
            ));
        };
        let place = Some(slot.places[plane.index()]).filter(|place| *place > 0);
        let place = slot.planes.next(plane, place, bytes)?;
        let Place { slot: number, buffer, offset, .. } = &part.place;
        recorder.upload(*number, buffer, offset + place as u64, bytes)?;
        slot.planes.add(plane);
        self.set_levels();
        Ok(())
    }

    /// What levels of the model mean with the planes that are there.
    fn set_levels(&mut self) {
        if let Some(slot) = &self.slot {
            self.levels = slot.planes.levels();
        }
    }

    /// The prefix of its codes that a level of the model means, as its place among the levels.
    ///
    /// # Errors
    /// [`EngineError::LevelMissing`] if its planes are not held.
    pub(crate) fn prefix(&self, level: Level) -> Result<u32, EngineError> {
        self.levels.prefix(level)
    }
}

impl Shaped for WgpuMatrix {
    fn shape(&self) -> Shape {
        Shape { rows: self.form.rows, cols: self.form.cols }
    }
}

impl HoldsLevels for WgpuMatrix {
    fn check_level(&self, level: Level) -> Result<(), EngineError> {
        self.check(level)
    }
}

impl DeviceMatrix for WgpuMatrix {
    fn form(&self) -> &ProductForm {
        &self.form
    }

    fn levels(&self) -> &HeldLevels {
        &self.levels
    }
}
