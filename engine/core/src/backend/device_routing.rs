//! Experts that a device finds by itself, from a routing that stays there.

use nestling_formats::Level;

use super::{Backend, HeldExpert, LevelWeights};
use crate::error::EngineError;

/// The experts of one layer where a device finds them ([`Backend::expert_table`],
/// [`SlotMemory::expert_table`](super::SlotMemory::expert_table)).
pub trait DeviceRouting<B: Backend>: Send + Sync {
    /// Tells the table of a streamed expert's planes; none for an expert that is in no slot.
    ///
    /// # Errors
    /// An expert that the table does not have; a failed device.
    fn set_expert(
        &mut self,
        encoder: &mut B::Encoder<'_>,
        expert: u32,
        held: Option<HeldExpert<'_, B>>,
    ) -> Result<(), EngineError>;

    /// Has [`DeviceRouting::routed_experts`] decide the level of every use by its weight from now on, or by
    /// its row again; a use is then read back as `expert | (level.index() + 1) << 16`.
    ///
    /// # Errors
    /// Weights of other experts than those of the table; a failed device.
    fn set_level_weights(
        &mut self,
        encoder: &mut B::Encoder<'_>,
        least: Option<&[LevelWeights]>, // [experts]
    ) -> Result<(), EngineError>;

    /// [`Encoder::experts`] with those that the routing names, which the host does not wait for. The next
    /// [`Encoder::read_into`] or [`Encoder::finish`] reads the routing back for
    /// [`DeviceRouting::take_readback`].
    ///
    /// Where the table lacks an expert, or a plane of one, neither this call nor anything that is recorded
    /// after it takes place until [`DeviceRouting::take_readback`] is called.
    ///
    /// [`Encoder::experts`]: super::Encoder::experts
    /// [`Encoder::read_into`]: super::Encoder::read_into
    /// [`Encoder::finish`]: super::Encoder::finish
    ///
    /// # Errors
    /// Sizes that differ; a level that an expert of the table does not hold; a failed device.
    fn routed_experts(
        &self,
        encoder: &mut B::Encoder<'_>,
        levels: &[Level],     // [T]
        routing: &B::Routing, // [T, K]
        x: &B::Buffer,        // [T, D]
        out: &mut B::Buffer,  // [T * K, D]
    ) -> Result<(), EngineError>;

    /// What the device used in the calls of [`DeviceRouting::routed_experts`] of this step, call after call,
    /// in place of what `uses` held; once a buffer was read or the step finished.
    ///
    /// Gives the call that missed an expert, counted from 0. Nothing after it took place, and its uses are the
    /// last ones; the next call takes its number. From here on everything takes place again.
    fn take_readback(encoder: &mut B::Encoder<'_>, uses: &mut Vec<u32>) -> Option<usize>;
}

/// The table of a backend that finds no experts by itself: no value of this type exists.
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

    /// There was no call.
    fn take_readback(_encoder: &mut B::Encoder<'_>, uses: &mut Vec<u32>) -> Option<usize> {
        uses.clear();
        None
    }
}
