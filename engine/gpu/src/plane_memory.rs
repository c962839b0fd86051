//! Device memory of a matrix's planes: types and traits for uploading them.

use nestling_core::EngineError;
use nestling_core::weights::MatrixWeights;
use nestling_formats::Plane;

use crate::held_levels::HeldLevels;
use crate::slot_layout::MatrixLayout;

/// A matrix to upload.
#[derive(Clone, Copy, Debug)]
pub struct NewMatrix<'a> {
    /// Weights of the matrix.
    pub weights: &'a MatrixWeights,
    /// Prefix and size at each level.
    pub levels: &'a HeldLevels,
}

/// Planes to add to a slot.
#[derive(Clone, Copy, Debug)]
pub struct NewPlanes<'a> {
    /// Planes in order. They follow the resident ones and have the expected sizes.
    pub planes: &'a [SlotPlane<'a>],
    /// Prefix and size at each level, including these planes.
    pub levels: &'a HeldLevels,
}

/// A plane to write to a slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotPlane<'a> {
    /// The plane's kind.
    pub plane: Plane,
    /// Bytes of the plane.
    pub bytes: &'a [u8],
}

impl SlotPlane<'_> {
    /// Returns the plane's space in a slot.
    ///
    /// # Errors
    /// Returns an error if the slot has no space for this plane.
    pub fn room<T>(&self, room: Option<T>) -> Result<T, EngineError> {
        let found = || format!("{:?}", self.plane);
        room.ok_or_else(|| EngineError::mismatch("plane of a matrix", "one with room", found()))
    }
}

/// The space of one matrix of an expert in a slot.
pub struct SlotRegion<B, R> {
    /// Index of the slot.
    pub slot: usize,
    /// Index of the slab.
    pub slab: usize,
    /// Memory of the whole slot.
    pub binding: B,
    /// Space of the matrix in the slot.
    pub matrix: R,
}

/// Device memory of a matrix's planes.
pub trait PlaneMemory: Sized + Send + Sync {
    /// Recorder of the uploads.
    type Recorder;
    /// A kernel argument: a device address, or a range of a buffer.
    type Binding;
    /// Layout of the planes in a slot.
    type MatrixLayout: MatrixLayout;

    /// Uploads a matrix for use by commands recorded later.
    ///
    /// # Errors
    /// Returns an error if the device is lost or out of memory, or if there are more rows or columns than
    /// kernels can count.
    fn upload(recorder: &mut Self::Recorder, matrix: NewMatrix<'_>) -> Result<Self, EngineError>;

    /// Writes a matrix with its base plane, or all of a float matrix, to a slot. The writes follow all
    /// recorded commands. The descriptor that kernels read may be written later, by [`PlaneMemory::add`].
    ///
    /// # Errors
    /// Returns an error if the matrix does not fit its space or the device is lost.
    fn in_slot(
        recorder: &mut Self::Recorder,
        room: &SlotRegion<Self::Binding, Self::MatrixLayout>,
        weights: &MatrixWeights,
    ) -> Result<Self, EngineError>;

    /// Writes planes to a slot after all recorded commands.
    ///
    /// # Errors
    /// Returns an error if the slot has no space for a plane or the device is lost.
    fn add(&mut self, recorder: &mut Self::Recorder, new: NewPlanes<'_>)
    -> Result<(), EngineError>;
}
