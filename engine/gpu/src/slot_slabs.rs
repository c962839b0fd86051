//! Slabs, the allocations that contain slots. Slots and expert tables share them.

use std::sync::{Arc, Mutex, MutexGuard};

use nestling_core::sync::whole;

/// One allocation that contains consecutive slots.
#[derive(Debug)]
pub(crate) struct SlotSlab<M> {
    pub memory: M,
    pub first: usize,
    pub count: usize,
}

impl<M> SlotSlab<M> {
    /// Returns the index after the last slot.
    pub fn end(&self) -> usize {
        self.first + self.count
    }
}

/// Slabs of slots, shared with tables of experts.
#[derive(Debug)]
pub struct SlotSlabs<M>(Arc<Mutex<Vec<SlotSlab<M>>>>);

impl<M> Default for SlotSlabs<M> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<M> Clone for SlotSlabs<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M> SlotSlabs<M> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<SlotSlab<M>>> {
        whole(self.0.lock())
    }

    /// Applies `of` to the memory of each slab, in order.
    pub fn map<T>(&self, of: impl FnMut(&M) -> T) -> Vec<T> {
        let slabs = self.lock();
        slabs.iter().map(|slab| &slab.memory).map(of).collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().last().map_or(0, SlotSlab::end)
    }
}
