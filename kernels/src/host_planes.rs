//! Expert planes in pinned host memory that do not fit on the device. The device copies them in both
//! directions, on the stream of transfers or on a separate one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use nestling_core::sync::whole;

use crate::driver::{Address, Driver, Event, PinnedMemory, Stream};
use crate::error::CudaError;

/// Pinned memory for planes, reused for planes of the same size.
pub(crate) struct HostPlanes {
    driver: Arc<Driver>,
    budget: u64,
    state: Arc<Mutex<PinnedPool>>,
}

#[derive(Default)]
struct PinnedPool {
    /// Bytes of all pinned memory, used and free.
    allocated: u64,
    /// Free memory, keyed by size in bytes.
    free: BTreeMap<usize, Vec<PinnedMemory>>,
    /// Used memory, keyed by start address.
    lent: BTreeMap<usize, Weak<HostBlock>>,
}

/// A plane in pinned memory, which is recycled on drop.
pub(crate) struct HostBlock {
    /// Memory of the plane, `None` only during drop.
    memory: Option<PinnedMemory>,
    bytes: usize,
    /// Event after the copies that write the plane.
    written: Event,
    /// True once the host has waited for these copies.
    is_written: AtomicBool,
    state: Arc<Mutex<PinnedPool>>,
}

fn lock(state: &Mutex<PinnedPool>) -> MutexGuard<'_, PinnedPool> {
    whole(state.lock())
}

impl HostBlock {
    /// Returns the memory, and the offset of `bytes` in it, if it contains them.
    pub fn find(&self, bytes: &[u8]) -> Option<(&PinnedMemory, usize)> {
        let memory = self.memory.as_ref()?;
        let start = bytes.as_ptr().addr().checked_sub(memory.start())?;
        (start + bytes.len() <= memory.len()).then_some((memory, start))
    }

    /// Makes later operations of a stream wait for the copies that write the plane.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    pub fn follow(&self, stream: &Stream) -> Result<(), CudaError> {
        if self.is_written.load(Ordering::Acquire) {
            Ok(())
        } else {
            stream.wait_for(&self.written)
        }
    }
}

impl AsRef<[u8]> for HostBlock {
    /// Waits for the copies that write the plane. After the device is lost, the bytes are unspecified; any
    /// use of the device then reports the loss.
    fn as_ref(&self) -> &[u8] {
        if !self.is_written.load(Ordering::Acquire) {
            let _ = self.written.synchronize();
            self.is_written.store(true, Ordering::Release);
        }
        // Default: the memory exists until drop.
        self.memory.as_ref().map(|memory| memory.bytes(self.bytes)).unwrap_or_default()
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        if !self.is_written.load(Ordering::Acquire) {
            // Another stream may write the memory next. The error can be ignored: a lost device writes
            // nothing.
            let _ = self.written.synchronize();
        }
        // Default: the memory exists until drop, which runs once.
        let Some(memory) = self.memory.take() else { return };
        let mut state = lock(&self.state);
        state.lent.remove(&memory.start());
        state.free.entry(memory.len()).or_default().push(memory);
    }
}

impl PinnedPool {
    /// Returns free or new memory, or `None` if the budget is exhausted.
    fn take(
        &mut self,
        driver: &Arc<Driver>,
        budget: u64,
        bytes: usize,
    ) -> Result<Option<PinnedMemory>, CudaError> {
        if let Some(memory) = self.free.get_mut(&bytes).and_then(Vec::pop) {
            return Ok(Some(memory));
        }
        // Free memory of other sizes is released first.
        while self.allocated + bytes as u64 > budget
            && let Some(mut entry) = self.free.first_entry()
        {
            match entry.get_mut().pop() {
                Some(memory) => self.allocated -= memory.len() as u64,
                None => drop(entry.remove()),
            }
        }
        if self.allocated + bytes as u64 > budget {
            return Ok(None);
        }
        match driver.allocate_pinned("experts", bytes) {
            Ok(memory) => {
                self.allocated += memory.len() as u64;
                Ok(Some(memory))
            }
            Err(error) if error.is_full() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl HostPlanes {
    /// Creates a pool with a budget in bytes. Memory is allocated on demand.
    pub fn new(driver: &Arc<Driver>, budget: u64) -> Self {
        Self { driver: Arc::clone(driver), budget, state: Arc::default() }
    }

    /// Starts copies of device memory into a block of `bytes` bytes, at the ranges of `parts`. Returns `None`
    /// if there is no space.
    ///
    /// # Errors
    /// Returns an error if the device is lost or a part exceeds the block.
    pub fn fetch(
        &self,
        stream: &Stream,
        parts: &[(Address, Range<usize>)],
        bytes: usize,
    ) -> Result<Option<Arc<HostBlock>>, CudaError> {
        let size = bytes.max(256);
        let taken = lock(&self.state).take(&self.driver, self.budget, size)?;
        let Some(mut memory) = taken else { return Ok(None) };
        for (address, range) in parts {
            stream.copy_out(*address, range.len(), &mut memory, range.start)?;
        }
        let written = self.driver.event()?;
        stream.record(&written)?;
        let start = memory.start();
        let (memory, state) = (Some(memory), Arc::clone(&self.state));
        let is_written = AtomicBool::new(false);
        let block = Arc::new(HostBlock { memory, bytes, written, is_written, state });
        lock(&self.state).lent.insert(start, Arc::downgrade(&block));
        Ok(Some(block))
    }

    /// Returns the block that contains `bytes`, if any.
    pub fn block_of(&self, bytes: &[u8]) -> Option<Arc<HostBlock>> {
        let state = lock(&self.state);
        let (_, block) = state.lent.range(..=bytes.as_ptr().addr()).next_back()?;
        let block = block.upgrade()?;
        drop(state);
        block.find(bytes).is_some().then_some(block)
    }
}
