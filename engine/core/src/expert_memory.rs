//! Control of the memory of streamed experts while a model runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::expert_map::{ExpertMap, SharedExpertMap};

/// Memory of a model's streamed experts, adjustable while the model runs. A change takes effect before the
/// experts of the next layer are requested.
#[derive(Debug)]
pub struct ExpertMemory {
    /// Requested budget in bytes; `u64::MAX` if unchanged.
    wanted_bytes: AtomicU64,
    /// Bytes to release as soon as possible.
    shed_bytes: AtomicU64,
    /// Bytes held.
    used_bytes: AtomicU64,
    /// Planes of all experts; empty if they are not of this process.
    map: Arc<SharedExpertMap>,
}

impl Default for ExpertMemory {
    fn default() -> Self {
        Self::new()
    }
}

impl ExpertMemory {
    /// Creates a control without requests and with 0 bytes held.
    pub fn new() -> Self {
        Self::with_map(Arc::default())
    }

    /// Works like [`ExpertMemory::new`], with the map that the expert cache writes.
    pub fn with_map(map: Arc<SharedExpertMap>) -> Self {
        let wanted_bytes = AtomicU64::new(u64::MAX);
        Self { wanted_bytes, shed_bytes: AtomicU64::new(0), used_bytes: AtomicU64::new(0), map }
    }

    /// Returns the planes of all experts, without waiting for a running step. Empty without a map.
    pub fn map(&self) -> ExpertMap {
        self.map.read()
    }

    /// Requests a new budget in bytes.
    pub fn set_budget(&self, bytes: u64) {
        self.wanted_bytes.store(bytes.min(u64::MAX - 1), Ordering::Release);
    }

    /// Requests eviction of `bytes` of planes, lowest retention score first; they may be read again later.
    pub fn shed(&self, bytes: u64) {
        self.shed_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Returns the bytes of planes that are resident or being read.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Acquire)
    }

    /// Takes the budget requested since the last call, if any.
    pub fn take_wanted(&self) -> Option<u64> {
        let wanted = self.wanted_bytes.swap(u64::MAX, Ordering::AcqRel);
        (wanted != u64::MAX).then_some(wanted)
    }

    /// Takes the bytes to release that were requested since the last call.
    pub fn take_shed(&self) -> u64 {
        self.shed_bytes.swap(0, Ordering::AcqRel)
    }

    /// Sets the bytes held.
    pub fn set_used(&self, bytes: u64) {
        self.used_bytes.store(bytes, Ordering::Release);
    }
}
