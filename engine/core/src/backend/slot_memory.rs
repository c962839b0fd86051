//! Device memory for streamed experts, for the backends that have it.

use std::ops::Range;

use nestling_formats::{MatrixKind, Plane};

use super::{Backend, ExpertBiases, FeedForward, HostLink, HostPlane, SlotPlace};
use crate::error::EngineError;
use crate::weights::{ActivationMode, MatrixWeights};

/// Slots for streamed experts in device memory, each with room for one expert of any layer
/// ([`Backend::expert_slots`]).
///
/// Copies to and from slots are recorded in order with a step's operations, or, between
/// [`SlotMemory::begin_async_copies`] and [`SlotMemory::end_async_copies`], run beside the steps.
pub trait SlotMemory<B: Backend>: Send + Sync {
    /// How many slots there are.
    fn count(&self) -> usize;

    /// Bytes of a slot.
    fn slot_bytes(&self) -> u64;

    /// Slots that keep their contents when there are as many as fit `bytes`: the first ones.
    fn kept(&self, bytes: u64) -> usize;

    /// Makes the slots as many as fit `bytes`, or fewer where memory is full. Those that are not
    /// [`SlotMemory::kept`] lose their contents.
    ///
    /// # Errors
    /// A device whose memory has no room for one expert, and no slot is left.
    fn resize(&mut self, encoder: &mut B::Encoder<'_>, bytes: u64) -> Result<(), EngineError>;

    /// A table of a layer's experts, none of which is in a slot yet. None where the host has to know the
    /// routing.
    ///
    /// # Errors
    /// A backend whose memory is full.
    fn expert_table(
        &self,
        backend: &mut B,
        layer: usize,
        num_experts: usize,
        biases: Option<&ExpertBiases>,
    ) -> Result<Option<B::ExpertTable>, EngineError>;

    /// Puts a matrix of an expert into its slot, with the planes that `weights` has; others can be added.
    /// Computed with at most the planes that are there.
    ///
    /// # Errors
    /// A slot or a size that there is not; a failed device.
    fn place_matrix(
        &mut self,
        encoder: &mut B::Encoder<'_>,
        place: SlotPlace,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<B::Matrix, EngineError>;

    /// Puts one plane more of a matrix into its slot.
    ///
    /// # Errors
    /// A matrix that is in no slot or lacks the plane before; a plane of another size; a failed
    /// device.
    fn add_plane(
        &mut self,
        encoder: &mut B::Encoder<'_>,
        matrix: &mut B::Matrix,
        plane: Plane,
        bytes: &[u8],
    ) -> Result<(), EngineError>;

    /// Copies the parts of one plane of an expert to host memory, `bytes` long, that the device copies
    /// from by itself. None where there is no room for it, or a device keeps no planes there.
    ///
    /// # Errors
    /// Parts that the matrices do not have; a failed device.
    fn fetch_plane(
        &mut self,
        encoder: &mut B::Encoder<'_>,
        weights: &FeedForward<B>,
        parts: &[PlanePart],
        bytes: u64,
    ) -> Result<Option<HostPlane>, EngineError>;

    /// Copies that begin from here on run beside the steps: after everything that was recorded, and nothing
    /// that is recorded later waits for them. What they place must not be used before
    /// [`SlotMemory::completed_copies`] says that it is there. A device with one queue copies in order.
    ///
    /// # Errors
    /// A failed device.
    fn begin_async_copies(&mut self, encoder: &mut B::Encoder<'_>) -> Result<(), EngineError> {
        let _ = encoder;
        Ok(())
    }

    /// Copies are recorded in order again. Gives the fence of those that are not.
    ///
    /// # Errors
    /// A failed device.
    fn end_async_copies(&mut self, encoder: &mut B::Encoder<'_>) -> Result<CopyFence, EngineError> {
        let _ = encoder;
        Ok(CopyFence::default())
    }

    /// The latest fence whose copies, and all before them, are done for what is recorded from now on. The
    /// device waits for those up to `awaited`, the host does not.
    ///
    /// # Errors
    /// A failed device.
    fn completed_copies(
        &mut self,
        encoder: &mut B::Encoder<'_>,
        awaited: CopyFence,
    ) -> Result<CopyFence, EngineError> {
        let _ = encoder;
        Ok(awaited)
    }

    /// Measured bandwidth between empty slots and the host memory that holds evicted planes. None where no
    /// planes are held there.
    ///
    /// # Errors
    /// A failed device.
    fn host_link(&mut self, backend: &mut B) -> Result<Option<HostLink>, EngineError> {
        let _ = backend;
        Ok(None)
    }
}

/// The end of copies that ran beside the steps: later ones are greater, and the default is that of none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CopyFence(pub u64);

impl CopyFence {
    /// That of all copies.
    pub const ALL: Self = Self(u64::MAX);
}

/// A plane of one of an expert's matrices, as a part of a plane of the expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanePart {
    /// Gate, up or down.
    pub matrix: MatrixKind,
    /// The plane of the matrix.
    pub plane: Plane,
    /// Where it lies among the bytes of the expert's plane.
    pub range: Range<usize>,
}

/// The slots of a backend that has none: no value of this type exists.
#[derive(Clone, Copy, Debug)]
pub enum NoSlots {}

impl<B: Backend> SlotMemory<B> for NoSlots {
    fn count(&self) -> usize {
        match *self {}
    }

    fn slot_bytes(&self) -> u64 {
        match *self {}
    }

    fn kept(&self, _bytes: u64) -> usize {
        match *self {}
    }

    fn resize(&mut self, _encoder: &mut B::Encoder<'_>, _bytes: u64) -> Result<(), EngineError> {
        match *self {}
    }

    fn expert_table(
        &self,
        _backend: &mut B,
        _layer: usize,
        _num_experts: usize,
        _biases: Option<&ExpertBiases>,
    ) -> Result<Option<B::ExpertTable>, EngineError> {
        match *self {}
    }

    fn place_matrix(
        &mut self,
        _encoder: &mut B::Encoder<'_>,
        _place: SlotPlace,
        _weights: &MatrixWeights,
        _activations: ActivationMode,
    ) -> Result<B::Matrix, EngineError> {
        match *self {}
    }

    fn add_plane(
        &mut self,
        _encoder: &mut B::Encoder<'_>,
        _matrix: &mut B::Matrix,
        _plane: Plane,
        _bytes: &[u8],
    ) -> Result<(), EngineError> {
        match *self {}
    }

    fn fetch_plane(
        &mut self,
        _encoder: &mut B::Encoder<'_>,
        _weights: &FeedForward<B>,
        _parts: &[PlanePart],
        _bytes: u64,
    ) -> Result<Option<HostPlane>, EngineError> {
        match *self {}
    }
}
