//! Expert selection on the device, from a routing that the host has not read.

use nestling_formats::Level;

use super::{Backend, HeldExpert, LevelWeights};
use crate::error::EngineError;

/// Expert table of one layer on a device that finds experts itself ([`Backend::expert_table`],
/// [`SlotMemory::expert_table`](super::SlotMemory::expert_table)).
pub trait DeviceRouting<B: Backend>: Send + Sync {
    /// Updates the entry of a streamed expert; `None` if the expert is in no slot.
    ///
    /// # Errors
    /// Returns an error if the table does not have the expert or the device failed.
    fn set_expert(
        &mut self,
        encoder: &mut B::Encoder<'_>,
        expert: u32,
        held: Option<HeldExpert<'_, B>>,
    ) -> Result<(), EngineError>;

    /// Selects how [`DeviceRouting::routed_experts`] chooses levels from the next call on: by the router
    /// weight of each use, or by row with `None`. With weights, a use is read back as `expert |
    /// (level.index() + 1) << 16`.
    ///
    /// # Errors
    /// Returns an error if the number of weights does not match the table or the device failed.
    fn set_level_weights(
        &mut self,
        encoder: &mut B::Encoder<'_>,
        least: Option<&[LevelWeights]>, // [experts]
    ) -> Result<(), EngineError>;

    /// Records [`Encoder::experts`] for the experts in the routing, without waiting on the host. The next
    /// [`Encoder::read_into`] or [`Encoder::finish`] reads the routing back for
    /// [`DeviceRouting::take_readback`].
    ///
    /// The device skips this call and all operations recorded after it if the table lacks an expert or one of
    /// its planes. Execution resumes when [`DeviceRouting::take_readback`] is called.
    ///
    /// [`Encoder::experts`]: super::Encoder::experts
    /// [`Encoder::read_into`]: super::Encoder::read_into
    /// [`Encoder::finish`]: super::Encoder::finish
    ///
    /// # Errors
    /// Returns an error if sizes differ, an expert of the table does not hold a level, or the device failed.
    fn routed_experts(
        &self,
        encoder: &mut B::Encoder<'_>,
        levels: &[Level],     // [T]
        routing: &B::Routing, // [T, K]
        x: &B::Buffer,        // [T, D]
        out: &mut B::Buffer,  // [T * K, D]
    ) -> Result<(), EngineError>;

    /// Replaces `uses` with the uses computed by this step's calls of [`DeviceRouting::routed_experts`], call
    /// by call. Available after a buffer was read or the step finished.
    ///
    /// Returns the index, from 0, of the call that missed an expert. That call and all later operations were
    /// skipped, and its uses are the last ones in `uses`. The next call takes the same index, and execution
    /// resumes from there.
    fn take_readback(encoder: &mut B::Encoder<'_>, uses: &mut Vec<u32>) -> Option<usize>;
}

/// Expert table of backends without device routing; the type has no values.
#[derive(Clone, Copy, Debug)]
pub enum NoTable {}

impl<B: Backend> DeviceRouting<B> for NoTable {
    fn set_expert(
        &mut self,
        _encoder: &mut B::Encoder<'_>,
        _expert: u32,
        _held: Option<HeldExpert<'_, B>>,
    ) -> Result<(), EngineError> {
        match *self {}
    }

    fn set_level_weights(
        &mut self,
        _encoder: &mut B::Encoder<'_>,
        _least: Option<&[LevelWeights]>,
    ) -> Result<(), EngineError> {
        match *self {}
    }

    fn routed_experts(
        &self,
        _encoder: &mut B::Encoder<'_>,
        _levels: &[Level],
        _routing: &B::Routing,
        _x: &B::Buffer,
        _out: &mut B::Buffer,
    ) -> Result<(), EngineError> {
        match *self {}
    }

    fn take_readback(_encoder: &mut B::Encoder<'_>, uses: &mut Vec<u32>) -> Option<usize> {
        uses.clear();
        None
    }
}
