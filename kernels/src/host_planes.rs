//! Planes of experts in pinned memory of the host, for which the device has no room: copied there and back
//! by the device itself, on the stream of transfers or beside it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use nestling_core::sync::whole;

use crate::driver::{Address, Driver, Event, PinnedMemory, Stream};
use crate::error::CudaError;

/// Memory for planes, used again by those of the same size.
pub(crate) struct HostPlanes {
    driver: Arc<Driver>,
    budget: u64,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Bytes of all memory, in use or not.
    allocated: u64,
    /// Not in use, by size.
    free: BTreeMap<usize, Vec<PinnedMemory>>,
    /// In use, by the address of the first byte.
    lent: BTreeMap<usize, Weak<HostBlock>>,
}

/// One plane. Others may have its memory once it is dropped.
pub(crate) struct HostBlock {
    /// None only while it is dropped.
    memory: Option<PinnedMemory>,
    bytes: usize,
    /// Behind the copies to it.
    written: Event,
    /// Whether these were waited for.
    is_written: AtomicBool,
    state: Arc<Mutex<State>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    whole(state.lock())
}

impl HostBlock {
    /// The memory, and where in it some of its bytes are.
    pub fn find(&self, bytes: &[u8]) -> Option<(&PinnedMemory, usize)> {
        let memory = self.memory.as_ref()?;
        let start = bytes.as_ptr().addr().checked_sub(memory.start())?;
        (start + bytes.len() <= memory.len()).then_some((memory, start))
    }

    /// What a stream does from now on comes behind the copies to it, whatever stream these are on.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn follow(&self, stream: &Stream) -> Result<(), CudaError> {
        if self.is_written.load(Ordering::Acquire) {
            Ok(())
        } else {
            stream.wait_for(&self.written)
        }
    }
}

impl AsRef<[u8]> for HostBlock {
    /// Waits until they are there. Those of a device that was lost are unspecified: whoever uses them
    /// uses the device, which says so.
    fn as_ref(&self) -> &[u8] {
        if !self.is_written.load(Ordering::Acquire) {
            let _ = self.written.synchronize();
            self.is_written.store(true, Ordering::Release);
        }
        // Default: memory is there until the block is dropped.
        self.memory.as_ref().map(|memory| memory.bytes(self.bytes)).unwrap_or_default()
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        if !self.is_written.load(Ordering::Acquire) {
            // Another stream may write there next. A device that is lost writes nothing any more.
            let _ = self.written.synchronize();
        }
        // Default: memory is there until the block is dropped, which it is once.
        let Some(memory) = self.memory.take() else { return };
        let mut state = lock(&self.state);
        state.lent.remove(&memory.start());
        state.free.entry(memory.len()).or_default().push(memory);
    }
}

impl State {
    /// Memory that is not in use; none if the budget has no room for more.
    fn take(
        &mut self,
        driver: &Arc<Driver>,
        budget: u64,
        bytes: usize,
    ) -> Result<Option<PinnedMemory>, CudaError> {
        if let Some(memory) = self.free.get_mut(&bytes).and_then(Vec::pop) {
            return Ok(Some(memory));
        }
        // Of other sizes than are wanted now.
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
    /// Room for planes of so many bytes in all; nothing is allocated before it is used.
    pub fn new(driver: &Arc<Driver>, budget: u64) -> Self {
        Self { driver: Arc::clone(driver), budget, state: Arc::default() }
    }

    /// Starts copies of parts of the device's memory to where they belong in a block of so many bytes. None
    /// if there is no room for it.
    ///
    /// # Errors
    /// A device that is lost; a part that ends beyond the block.
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

    /// The block that holds these bytes, if one does.
    pub fn block_of(&self, bytes: &[u8]) -> Option<Arc<HostBlock>> {
        let state = lock(&self.state);
        let (_, block) = state.lent.range(..=bytes.as_ptr().addr()).next_back()?;
        let block = block.upgrade()?;
        drop(state);
        block.find(bytes).is_some().then_some(block)
    }
}
