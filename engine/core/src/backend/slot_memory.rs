//! Optional device memory for streamed experts.

use std::ops::Range;

use nestling_formats::{MatrixKind, Plane};

use super::{Backend, ExpertBiases, FeedForward, HostLink, HostPlane, SlotPlace};
use crate::error::EngineError;
use crate::weights::{ActivationMode, MatrixWeights};

/// Slots for streamed experts in device memory, each large enough for one expert of any layer
/// ([`Backend::expert_slots`]).
///
/// Copies to and from slots are recorded in order with a step's operations. Between
/// [`SlotMemory::begin_async_copies`] and [`SlotMemory::end_async_copies`] they run in parallel with steps.
pub trait SlotMemory<B: Backend>: Send + Sync {
    /// Returns the number of slots.
    fn count(&self) -> usize;

    /// Returns the size of a slot in bytes.
    fn slot_bytes(&self) -> u64;

    /// Returns the number of slots, counted from the first, that keep their contents after a resize to
    /// `bytes`.
    fn kept(&self, bytes: u64) -> usize;

    /// Resizes to as many slots as fit in `bytes`, or fewer if memory is full. Slots that are not
    /// [`SlotMemory::kept`] lose their contents.
    ///
    /// # Errors
    /// Returns an error if no slot remains and the memory cannot hold a new one.
    fn resize(&mut self, encoder: &mut B::Encoder<'_>, bytes: u64) -> Result<(), EngineError>;

    /// Creates the expert table of a layer, with no expert in a slot yet. Returns `None` if the host must
    /// know the routing.
    ///
    /// # Errors
    /// Returns an error if the backend's memory is full.
    fn expert_table(
        &self,
        backend: &mut B,
        layer: usize,
        num_experts: usize,
        biases: Option<&ExpertBiases>,
    ) -> Result<Option<B::ExpertTable>, EngineError>;

    /// Copies a matrix of an expert into its slot, with the planes in `weights`; further planes can be added.
    /// Products use at most the planes present.
    ///
    /// # Errors
    /// Returns an error if the slot does not exist, a size is wrong, or the device failed.
    fn place_matrix(
        &mut self,
        encoder: &mut B::Encoder<'_>,
        place: SlotPlace,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<B::Matrix, EngineError>;

    /// Copies one more plane of a matrix into its slot.
    ///
    /// # Errors
    /// Returns an error if the matrix is in no slot or lacks the plane before, the plane has another size, or the
    /// device failed.
    fn add_plane(
        &mut self,
        encoder: &mut B::Encoder<'_>,
        matrix: &mut B::Matrix,
        plane: Plane,
        bytes: &[u8],
    ) -> Result<(), EngineError>;

    /// Copies the parts of one plane of an expert, `bytes` bytes in total, to pinned host memory. Returns
    /// `None` if that memory is full or the device keeps no planes there.
    ///
    /// # Errors
    /// Returns an error if the matrices do not have the parts or the device failed.
    fn fetch_plane(
        &mut self,
        encoder: &mut B::Encoder<'_>,
        weights: &FeedForward<B>,
        parts: &[PlanePart],
        bytes: u64,
    ) -> Result<Option<HostPlane>, EngineError>;

    /// Makes subsequent copies asynchronous. They start after all operations recorded so far, and later
    /// operations do not wait for them. The copied data must not be used before
    /// [`SlotMemory::completed_copies`] reports the copies complete. A device with one queue copies in order.
    ///
    /// # Errors
    /// Returns an error if the device failed.
    fn begin_async_copies(&mut self, encoder: &mut B::Encoder<'_>) -> Result<(), EngineError> {
        let _ = encoder;
        Ok(())
    }

    /// Makes subsequent copies in-order again and returns the fence of the asynchronous ones.
    ///
    /// # Errors
    /// Returns an error if the device failed.
    fn end_async_copies(&mut self, encoder: &mut B::Encoder<'_>) -> Result<CopyFence, EngineError> {
        let _ = encoder;
        Ok(CopyFence::default())
    }

    /// Returns the latest fence up to which all copies are complete for operations recorded from this call
    /// on. The device, not the host, waits for copies up to `awaited`.
    ///
    /// # Errors
    /// Returns an error if the device failed.
    fn completed_copies(
        &mut self,
        encoder: &mut B::Encoder<'_>,
        awaited: CopyFence,
    ) -> Result<CopyFence, EngineError> {
        let _ = encoder;
        Ok(awaited)
    }

    /// Measures the bandwidth between empty slots and the host memory for evicted planes. Returns `None` if
    /// planes are not kept there.
    ///
    /// # Errors
    /// Returns an error if the device failed.
    fn host_link(&mut self, backend: &mut B) -> Result<Option<HostLink>, EngineError> {
        let _ = backend;
        Ok(None)
    }
}

/// Fence of asynchronous copies. Later fences are greater; the default precedes all copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CopyFence(pub u64);

impl CopyFence {
    /// Fence of all copies.
    pub const ALL: Self = Self(u64::MAX);
}

/// A part of an expert's plane: one plane of one of its matrices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanePart {
    /// Matrix of the expert: gate, up or down.
    pub matrix: MatrixKind,
    /// Plane of the matrix.
    pub plane: Plane,
    /// Byte range within the expert's plane.
    pub range: Range<usize>,
}

/// Slots of backends without slot memory; the type has no values.
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
