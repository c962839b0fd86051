//! The slots of a device: which are free, and what the device has to be told of.

use std::collections::VecDeque;

use nestling_formats::ExpertId;

use super::host_tier::HostTier;
use super::host_unit::HostUnit;
use nestling_core::backend::{Backend, CopyFence, FeedForward, SlotMemory};
use nestling_core::error::EngineError;

/// The slots of a device, and who is in none.
pub(super) struct DeviceSlots<B: Backend> {
    pub slots: B::ExpertSlots,
    /// Slots that nothing is in, the first one last.
    pub free: Vec<usize>,
    /// Experts of which a table says something else than is true.
    pub changed: Vec<ExpertId>,
    /// Experts of which planes have arrived that are in no slot yet.
    pub arrived: Vec<ExpertId>,
    /// Planes that were in slots.
    pub tier: HostTier<B>,
    /// Who computes experts of which planes lie there.
    pub host: Option<HostUnit>,
    /// Experts on their way from there, in the order of their copies.
    pub promoted: VecDeque<Promoted<B>>,
}

impl<B: Backend> DeviceSlots<B> {
    pub fn new(slots: B::ExpertSlots) -> Self {
        let free = (0..slots.count()).rev().collect();
        let tier = HostTier::new();
        let (changed, arrived, promoted) = (Vec::new(), Vec::new(), VecDeque::new());
        Self { slots, free, changed, arrived, tier, host: None, promoted }
    }

    /// A slot that nothing is in.
    ///
    /// # Errors
    /// There is none.
    pub fn take(&mut self) -> Result<usize, EngineError> {
        let none =
            || EngineError::mismatch("slots of streamed experts", "one that is free", "none");
        self.free.pop().ok_or_else(none)
    }

    /// Nothing is in a slot any more.
    pub fn give(&mut self, slot: usize) {
        self.free.push(slot);
    }

    /// A plane of an expert has arrived.
    pub fn arrived(&mut self, expert: ExpertId) {
        self.arrived.push(expert);
    }

    /// Bytes of the slots that something is in.
    pub fn taken_bytes(&self) -> u64 {
        self.slots.count().saturating_sub(self.free.len()) as u64 * self.slots.slot_bytes()
    }

    /// What there is of an expert is not what its table says.
    pub fn changed(&mut self, expert: ExpertId) {
        self.changed.push(expert);
    }
}

/// An expert on its way to a slot. Its planes are in memory of the host until it is there.
pub(super) struct Promoted<B: Backend> {
    pub id: ExpertId,
    pub planes: usize,
    pub place: usize,
    pub weights: FeedForward<B>,
    /// The end of the copies.
    pub fence: CopyFence,
}
