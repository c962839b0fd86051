//! Where the planes of a matrix lie in memory of a device, and how they get there.

use nestling_core::EngineError;
use nestling_core::weights::MatrixWeights;
use nestling_formats::Plane;

use crate::held_levels::HeldLevels;
use crate::slot_layout::MatrixRoom;

/// A matrix on its way to a device.
#[derive(Clone, Copy, Debug)]
pub struct NewMatrix<'a> {
    /// All of it.
    pub weights: &'a MatrixWeights,
    /// What levels mean for it.
    pub levels: &'a HeldLevels,
}

/// Planes on their way to a slot.
#[derive(Clone, Copy, Debug)]
pub struct NewPlanes<'a> {
    /// Which, in their order. They follow those that are there and have their sizes.
    pub planes: &'a [SlotPlane<'a>],
    /// What levels mean with them.
    pub levels: &'a HeldLevels,
}

/// A plane on its way to a slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotPlane<'a> {
    /// Which.
    pub plane: Plane,
    /// All of it.
    pub bytes: &'a [u8],
}

impl SlotPlane<'_> {
    /// The room of the plane in a slot, where it has one.
    ///
    /// # Errors
    /// A slot without room for it.
    pub fn room<T>(&self, room: Option<T>) -> Result<T, EngineError> {
        let found = || format!("{:?}", self.plane);
        room.ok_or_else(|| EngineError::mismatch("plane of a matrix", "one with room", found()))
    }
}

/// Where a matrix of an expert lies in memory of the device.
pub struct SlotRoom<B, R> {
    /// Number of the slot.
    pub slot: usize,
    /// Number of its slab.
    pub slab: usize,
    /// The whole slot.
    pub binding: B,
    /// The room of the matrix there.
    pub matrix: R,
}

/// Where the planes of a matrix lie.
pub trait PlaneMemory: Sized + Send + Sync {
    /// What puts them there.
    type Recorder;
    /// Where a kernel finds something.
    type Binding;
    /// How they lie in a slot.
    type Room: MatrixRoom;

    /// Uploads a matrix, for whatever is recorded from now on.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full; more rows or columns than kernels count.
    fn upload(recorder: &mut Self::Recorder, matrix: NewMatrix<'_>) -> Result<Self, EngineError>;

    /// Puts what describes a matrix, and all of it or its first plane, into its room in a slot, behind all that
    /// was recorded.
    ///
    /// # Errors
    /// A matrix that does not fit its room; a device that is lost.
    fn in_slot(
        recorder: &mut Self::Recorder,
        room: &SlotRoom<Self::Binding, Self::Room>,
        weights: &MatrixWeights,
    ) -> Result<Self, EngineError>;

    /// Puts planes into a slot behind all that was recorded.
    ///
    /// # Errors
    /// A plane without room; a device that is lost.
    fn add(&mut self, recorder: &mut Self::Recorder, new: NewPlanes<'_>)
    -> Result<(), EngineError>;
}
