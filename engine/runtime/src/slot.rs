//! Location of a session's sequence: at rest in its slot, or owned by the step loop.

use std::sync::LockResult;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sequence::Sequence;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::sync::{Condvar, Mutex, MutexGuard, whole};

/// A session's sequence or, while a generation runs, the token that cancels that generation.
#[derive(Debug)]
pub(crate) enum SlotState {
    Resting(Sequence),
    Running(CancelToken),
}

#[derive(Debug)]
pub(crate) struct SessionSlot {
    state: Mutex<SlotState>,
    changed: Condvar,
    /// Last use, on the model's logical clock.
    last_used: AtomicU64,
}

impl SessionSlot {
    pub(crate) fn new(sequence: Sequence) -> Self {
        let state = Mutex::new(SlotState::Resting(sequence));
        Self { state, changed: Condvar::new(), last_used: AtomicU64::new(0) }
    }

    /// Locks the slot. Hold the lock briefly and never while rendering or tokenizing, since the end of a
    /// generation waits for it.
    ///
    /// # Errors
    /// Fails with [`EngineError::Panicked`] if an earlier holder panicked, which leaves the sequence in an
    /// unknown state.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, SlotState>, EngineError> {
        undamaged(self.state.lock())
    }

    /// Waits until a sequence is put back.
    ///
    /// # Errors
    /// Fails as [`Self::lock`] does.
    pub(crate) fn wait<'a>(
        &self,
        state: MutexGuard<'a, SlotState>,
    ) -> Result<MutexGuard<'a, SlotState>, EngineError> {
        undamaged(self.changed.wait(state))
    }

    pub(crate) fn put_back(&self, sequence: Sequence) {
        *whole(self.state.lock()) = SlotState::Resting(sequence);
        self.changed.notify_all();
    }

    pub(crate) fn touch(&self, now: u64) {
        self.last_used.store(now, Ordering::Relaxed);
    }

    pub(crate) fn last_used(&self) -> u64 {
        self.last_used.load(Ordering::Relaxed)
    }

    /// Returns the number of pages held at rest. Returns 0 if the slot is locked or a generation runs. Never
    /// blocks.
    pub(crate) fn resting_pages(&self) -> usize {
        match self.try_lock().as_deref() {
            Some(SlotState::Resting(sequence)) => sequence.pages().len(),
            Some(SlotState::Running(_)) | None => 0,
        }
    }

    /// Releases the pages of a sequence at rest, which is recomputed when needed.
    ///
    /// Returns false, without blocking, if a generation runs or the slot is locked.
    pub(crate) fn release_pages(&self) -> bool {
        match self.try_lock().as_deref_mut() {
            Some(SlotState::Resting(sequence)) => {
                sequence.forget_computed(0);
                true
            }
            Some(SlotState::Running(_)) | None => false,
        }
    }

    /// Returns `None` also if the lock is poisoned. A poisoned slot keeps its pages until it is dropped.
    fn try_lock(&self) -> Option<MutexGuard<'_, SlotState>> {
        self.state.try_lock().ok()
    }
}

fn undamaged<T>(locked: LockResult<T>) -> Result<T, EngineError> {
    locked.map_err(|_| EngineError::Panicked { what: "work on the session's history" })
}

#[cfg(test)]
mod tests {
    use super::SessionSlot;
    use crate::sequence::{Sequence, SequencePool};
    use nestling_core::error::EngineError;

    #[test]
    fn a_session_that_somebody_works_on_is_passed_by() {
        let pool = SequencePool::new(4, 0);
        let mut sequence = Sequence::new(pool.clone());
        sequence.extend(&[7; 70]).unwrap();
        sequence.advance(70).unwrap();
        let slot = SessionSlot::new(sequence);
        let held = slot.lock().unwrap();
        assert_eq!((slot.resting_pages(), slot.release_pages()), (0, false));
        drop(held);
        assert_eq!((slot.resting_pages(), slot.release_pages()), (2, true));
        assert_eq!((slot.resting_pages(), pool.free_pages()), (0, 4));
    }

    #[test]
    fn a_history_that_somebody_panicked_over_is_nobodys() {
        let pool = SequencePool::new(4, 0);
        let slot = SessionSlot::new(Sequence::new(pool.clone()));
        std::thread::scope(|scope| {
            let work = scope.spawn(|| {
                let _held = slot.lock().unwrap();
                panic!("as asked");
            });
            assert!(work.join().is_err());
        });
        assert!(matches!(slot.lock().err(), Some(EngineError::Panicked { .. })));
        assert_eq!((slot.resting_pages(), slot.release_pages()), (0, false));
        // Ending a generation does not fail on a poisoned slot.
        slot.put_back(Sequence::new(pool));
        assert!(matches!(slot.lock().err(), Some(EngineError::Panicked { .. })));
    }
}
