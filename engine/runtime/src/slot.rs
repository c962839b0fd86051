//! Where a session's sequence is: at rest, or in the step loop.

use std::sync::LockResult;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sequence::Sequence;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::sync::{Condvar, Mutex, MutexGuard, whole};

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

    /// Held for moments only, never while text is rendered or tokenized: whoever ends a generation
    /// waits for it.
    ///
    /// # Errors
    /// [`EngineError::Panicked`] if somebody who worked on the sequence did: what it is then, nobody knows.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, SlotState>, EngineError> {
        undamaged(self.state.lock())
    }

    /// Waits until something has been put back.
    ///
    /// # Errors
    /// As [`Self::lock`].
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

    /// Pages held at rest; none where somebody is at work on the session right now. Never waits.
    pub(crate) fn resting_pages(&self) -> usize {
        match self.try_lock().as_deref() {
            Some(SlotState::Resting(sequence)) => sequence.pages().len(),
            Some(SlotState::Running(_)) | None => 0,
        }
    }

    /// Gives up the pages of a sequence at rest; it is computed again when needed. False, without
    /// waiting, where it is not at rest or somebody is at work on it right now.
    pub(crate) fn release_pages(&self) -> bool {
        match self.try_lock().as_deref_mut() {
            Some(SlotState::Resting(sequence)) => {
                sequence.forget_computed(0);
                true
            }
            Some(SlotState::Running(_)) | None => false,
        }
    }

    /// None, too, of a damaged one, which keeps what it has until it is dropped.
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
        // Whoever ends a generation does not wait for what it is told.
        slot.put_back(Sequence::new(pool));
        assert!(matches!(slot.lock().err(), Some(EngineError::Panicked { .. })));
    }
}
