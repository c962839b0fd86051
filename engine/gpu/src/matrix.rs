//! Weight matrices in memory of a device.

use nestling_core::EngineError;
use nestling_core::backend::{HoldsLevels, Shape, Shaped};
use nestling_core::weights::{ActivationMode, MatrixWeights};
use nestling_formats::{Level, Plane};

use crate::held_levels::{HeldLevels, SlotPlanes};
use crate::plane_memory::{NewMatrix, NewPlanes, PlaneMemory, SlotPlane, SlotRoom};
use crate::product_form::ProductForm;

/// A weight matrix with the way to multiply it. `W` says where its planes lie.
#[derive(Debug)]
pub struct GpuMatrix<W> {
    /// What a product must know of it.
    pub form: ProductForm,
    /// Where its planes lie.
    pub weights: W,
    levels: HeldLevels,
    /// Those that are there of a nested matrix in a slot.
    slot: Option<SlotPlanes>,
}

impl<W: PlaneMemory> GpuMatrix<W> {
    /// Uploads a matrix, for whatever is recorded from now on.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full; more rows or columns than kernels count.
    pub fn upload(
        recorder: &mut W::Recorder,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<Self, EngineError> {
        let (form, levels) = (ProductForm::of(weights, activations), HeldLevels::of(weights));
        let weights = W::upload(recorder, NewMatrix { weights, levels: &levels })?;
        Ok(Self { form, weights, levels, slot: None })
    }

    /// Puts a matrix into its room in a slot, with the planes that it has, behind all that was recorded.
    ///
    /// # Errors
    /// A matrix that does not fit its room; a device that is lost.
    pub(crate) fn in_slot(
        recorder: &mut W::Recorder,
        room: &SlotRoom<W::Binding, W::Room>,
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

    /// Adds one plane to a matrix in a slot, behind all that was recorded.
    ///
    /// # Errors
    /// A matrix that is in no slot or lacks the plane before; a plane of another size or without room; a
    /// device that is lost.
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
    /// What the levels of a model mean for it.
    pub fn levels(&self) -> &HeldLevels {
        &self.levels
    }

    /// The prefix of its codes that a level means, as its index among the levels.
    ///
    /// # Errors
    /// [`EngineError::LevelMissing`] if its planes are not held.
    pub fn prefix(&self, level: Level) -> Result<u32, EngineError> {
        self.levels.prefix(level)
    }

    /// # Errors
    /// [`EngineError::LevelMissing`] for a level whose planes are not held.
    pub fn check(&self, level: Level) -> Result<(), EngineError> {
        self.levels.prefix(level).map(drop)
    }

    /// Bytes of a plane that is there, in a slot.
    ///
    /// # Errors
    /// A matrix that is in no slot or lacks the plane.
    pub fn slot_plane_bytes(&self, plane: Plane) -> Result<usize, EngineError> {
        let held = self.slot.as_ref().filter(|planes| planes.holds(plane));
        let missing = || EngineError::mismatch("plane of a matrix", "one in a slot", "none");
        Ok(held.ok_or_else(missing)?.bytes_of(plane))
    }
}

impl<W> Shaped for GpuMatrix<W> {
    fn shape(&self) -> Shape {
        Shape { rows: self.form.rows, cols: self.form.cols }
    }
}

impl<W> HoldsLevels for GpuMatrix<W> {
    fn check_level(&self, level: Level) -> Result<(), EngineError> {
        self.check(level)
    }
}
