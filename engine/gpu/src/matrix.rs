//! Weight matrices in device memory.

use nestling_core::EngineError;
use nestling_core::backend::{HasShape, HoldsLevels, Shape};
use nestling_core::weights::{ActivationMode, MatrixWeights};
use nestling_formats::{Level, Plane};

use crate::held_levels::{HeldLevels, SlotPlanes};
use crate::plane_memory::{NewMatrix, NewPlanes, PlaneMemory, SlotPlane, SlotRegion};
use crate::product_form::ProductForm;

/// A weight matrix in device memory. `W` is the backend's type of its planes.
#[derive(Debug)]
pub struct GpuMatrix<W> {
    /// Shape and number formats that products depend on.
    pub form: ProductForm,
    /// Device memory of the planes.
    pub weights: W,
    levels: HeldLevels,
    /// Resident planes of a nested matrix in a slot.
    slot: Option<SlotPlanes>,
}

impl<W: PlaneMemory> GpuMatrix<W> {
    /// Uploads a matrix for use by commands recorded later.
    ///
    /// # Errors
    /// Returns an error if the device is lost or out of memory, or if there are more rows or columns than
    /// kernels can count.
    pub fn upload(
        recorder: &mut W::Recorder,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<Self, EngineError> {
        let (form, levels) = (ProductForm::of(weights, activations), HeldLevels::of(weights));
        let weights = W::upload(recorder, NewMatrix { weights, levels: &levels })?;
        Ok(Self { form, weights, levels, slot: None })
    }

    /// Writes a matrix with its resident planes into its place in a slot, after all recorded commands.
    ///
    /// # Errors
    /// Returns an error if the matrix does not fit its place or the device is lost.
    pub(crate) fn in_slot(
        recorder: &mut W::Recorder,
        room: &SlotRegion<W::Binding, W::MatrixLayout>,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<Self, EngineError> {
        let form = ProductForm::of(weights, activations);
        let (mut levels, mut slot) = (HeldLevels::of(weights), None);
        let mut placed = W::in_slot(recorder, room, weights)?;
        if let MatrixWeights::Nested(nested) = weights {
            let mut planes = SlotPlanes::base(nested)?;
            let mut above = Vec::new();
            for (plane, bytes) in SlotPlanes::above_base(nested) {
                planes.check_next(plane, bytes)?;
                planes.add(plane);
                above.push(SlotPlane { plane, bytes });
            }
            levels = planes.levels();
            placed.add(recorder, NewPlanes { planes: &above, levels: &levels })?;
            slot = Some(planes);
        }
        Ok(Self { form, weights: placed, levels, slot })
    }

    /// Adds one plane to a matrix in a slot, after all recorded commands.
    ///
    /// # Errors
    /// Returns an error if the matrix is not in a slot, the plane before is missing, the plane has the wrong
    /// size or no space, or the device is lost.
    pub(crate) fn add_plane(
        &mut self,
        recorder: &mut W::Recorder,
        plane: SlotPlane<'_>,
    ) -> Result<(), EngineError> {
        let other = || EngineError::mismatch("plane of a matrix", "a matrix in a slot", "another");
        let mut planes = self.slot.ok_or_else(other)?;
        planes.check_next(plane.plane, plane.bytes)?;
        planes.add(plane.plane);
        let levels = planes.levels();
        self.weights.add(recorder, NewPlanes { planes: &[plane], levels: &levels })?;
        (self.slot, self.levels) = (Some(planes), levels);
        Ok(())
    }
}

impl<W> GpuMatrix<W> {
    /// Returns the matrix's prefixes and sizes at each level of a model.
    pub fn levels(&self) -> &HeldLevels {
        &self.levels
    }

    /// Returns the prefix of the codes at a level, as an index among the levels.
    ///
    /// # Errors
    /// Fails with [`EngineError::LevelMissing`] if the level's planes are not resident.
    pub fn prefix(&self, level: Level) -> Result<u32, EngineError> {
        self.levels.prefix(level)
    }

    /// Checks that a level is resident.
    ///
    /// # Errors
    /// Fails with [`EngineError::LevelMissing`] if the level's planes are not resident.
    pub fn check(&self, level: Level) -> Result<(), EngineError> {
        self.levels.prefix(level).map(drop)
    }

    /// Returns the size in bytes of a resident plane in a slot.
    ///
    /// # Errors
    /// Returns an error if the matrix is not in a slot or lacks the plane.
    pub fn slot_plane_bytes(&self, plane: Plane) -> Result<usize, EngineError> {
        let held = self.slot.as_ref().filter(|planes| planes.holds(plane));
        let missing = || EngineError::mismatch("plane of a matrix", "one in a slot", "none");
        Ok(held.ok_or_else(missing)?.bytes_of(plane))
    }
}

impl<W> HasShape for GpuMatrix<W> {
    fn shape(&self) -> Shape {
        Shape { rows: self.form.rows, cols: self.form.cols }
    }
}

impl<W> HoldsLevels for GpuMatrix<W> {
    fn check_level(&self, level: Level) -> Result<(), EngineError> {
        self.check(level)
    }
}
