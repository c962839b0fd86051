//! The memory of streamed experts, as others see and change it.

use std::sync::atomic::{AtomicU64, Ordering};

/// The memory of a model's experts, to be changed while it runs. A change is made before the next
/// layer's experts are looked for.
#[derive(Debug)]
pub struct ExpertMemory {
    /// What the budget is to be; `u64::MAX` where nothing is to change.
    wanted_bytes: AtomicU64,
    /// Bytes to give back at once.
    shed_bytes: AtomicU64,
    /// Bytes that are held.
    used_bytes: AtomicU64,
}

impl Default for ExpertMemory {
    fn default() -> Self {
        Self::new()
    }
}

impl ExpertMemory {
    /// Nothing is asked for, nothing is held.
    pub fn new() -> Self {
        let wanted_bytes = AtomicU64::new(u64::MAX);
        Self { wanted_bytes, shed_bytes: AtomicU64::new(0), used_bytes: AtomicU64::new(0) }
    }

    /// Asks for another budget.
    pub fn set_budget(&self, bytes: u64) {
        self.wanted_bytes.store(bytes.min(u64::MAX - 1), Ordering::Release);
    }

    /// Asks for `bytes` of planes to go, those that are missed least; they may come back.
    pub fn shed(&self, bytes: u64) {
        self.shed_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Bytes of planes that are held or on their way.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Acquire)
    }

    /// The budget that was asked for since this was asked last.
    pub fn take_wanted(&self) -> Option<u64> {
        let wanted = self.wanted_bytes.swap(u64::MAX, Ordering::AcqRel);
        (wanted != u64::MAX).then_some(wanted)
    }

    /// The bytes that are to go since this was asked last.
    pub fn take_shed(&self) -> u64 {
        self.shed_bytes.swap(0, Ordering::AcqRel)
    }

    /// Says how many bytes are held.
    pub fn set_used(&self, bytes: u64) {
        self.used_bytes.store(bytes, Ordering::Release);
    }
}
