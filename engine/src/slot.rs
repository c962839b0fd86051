//! Where a session's sequence is: at rest, or in the step loop.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::cancel::CancelToken;
use crate::sequence::Sequence;

/// A session's sequence or, while a generation has it, how to stop that.
#[derive(Debug)]
pub(crate) enum SlotState {
    Resting(Sequence),
    Running(CancelToken),
}

/// The place of one session's sequence.
#[derive(Debug)]
pub(crate) struct SessionSlot {
    state: Mutex<SlotState>,
    changed: Condvar,
    /// When it was last used, on the model's own count.
    last_used: AtomicU64,
}

impl SessionSlot {
    pub(crate) fn new(sequence: Sequence) -> Self {
        let state = Mutex::new(SlotState::Resting(sequence));
        Self { state, changed: Condvar::new(), last_used: AtomicU64::new(0) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something has been put back.
    pub(crate) fn wait<'a>(&self, state: MutexGuard<'a, SlotState>) -> MutexGuard<'a, SlotState> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn put_back(&self, sequence: Sequence) {
        *self.lock() = SlotState::Resting(sequence);
        self.changed.notify_all();
    }

    pub(crate) fn touch(&self, now: u64) {
        self.last_used.store(now, Ordering::Relaxed);
    }

    pub(crate) fn last_used(&self) -> u64 {
        self.last_used.load(Ordering::Relaxed)
    }

    /// Pages held at rest.
    pub(crate) fn resting_pages(&self) -> usize {
        match &*self.lock() {
            SlotState::Resting(sequence) => sequence.pages().len(),
            SlotState::Running(_) => 0,
        }
    }

    /// Gives up the pages of a sequence at rest; it is computed again when needed.
    pub(crate) fn release_pages(&self) {
        if let SlotState::Resting(sequence) = &mut *self.lock() {
            sequence.forget_computed(0);
        }
    }
}
