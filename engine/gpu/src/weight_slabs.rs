//! Suballocator of weight memory. Each weight has a range of one of a few large allocations, called slabs.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use nestling_core::sync::whole;

use crate::allocation::Allocation;
use crate::error::GpuError;
use crate::free_ranges::FreeRanges;

/// Alignment of ranges in bytes.
pub const WEIGHT_ALIGN: u64 = 256;

/// All slabs of a device.
#[derive(Debug)]
pub struct WeightSlabs<M>(Arc<Mutex<Slabs<M>>>);

#[derive(Debug)]
struct Slabs<M> {
    slabs: Vec<Slab<M>>,
    /// Released ranges that submitted work may still read.
    released: Vec<(usize, Range<u64>)>,
}

#[derive(Debug)]
struct Slab<M> {
    memory: Arc<M>,
    free: FreeRanges,
}

/// A byte range of a slab, released on drop.
#[derive(Debug)]
pub struct WeightRange<M> {
    slab: usize,
    memory: Arc<M>,
    offset: u64,
    bytes: u64,
    slabs: Arc<Mutex<Slabs<M>>>,
}

impl<M> WeightRange<M> {
    /// Returns the index of the slab.
    pub fn slab(&self) -> usize {
        self.slab
    }

    /// Returns the memory of the slab.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the byte offset of the range in the slab.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl<M: Allocation> WeightRange<M> {
    /// Returns a binding of the first `bytes` bytes of the range.
    pub fn binding(&self, bytes: u64) -> M::Binding {
        self.memory.range(self.offset, bytes)
    }
}

impl<M> Drop for WeightRange<M> {
    fn drop(&mut self) {
        let range = self.offset..self.offset + self.bytes;
        lock(&self.slabs).released.push((self.slab, range));
    }
}

fn lock<M>(slabs: &Mutex<Slabs<M>>) -> MutexGuard<'_, Slabs<M>> {
    whole(slabs.lock())
}

fn aligned(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(WEIGHT_ALIGN)
}

impl<M> Default for WeightSlabs<M> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Slabs { slabs: Vec::new(), released: Vec::new() })))
    }
}

impl<M: Allocation> WeightSlabs<M> {
    /// Allocates a range with unspecified contents. Returns `None` if no slab has enough free bytes.
    pub fn take(&self, bytes: u64) -> Option<WeightRange<M>> {
        let bytes = aligned(bytes);
        let mut state = lock(&self.0);
        let mut slabs = (0..).zip(&mut state.slabs);
        let (slab, memory, offset) = slabs.find_map(|(slab, one)| {
            let offset = one.free.take(bytes)?;
            Some((slab, Arc::clone(&one.memory), offset))
        })?;
        Some(WeightRange { slab, memory, offset, bytes, slabs: Arc::clone(&self.0) })
    }

    /// Adds a slab of `size` bytes and returns its first range. If memory is full, the slab is only as large
    /// as the range.
    ///
    /// # Errors
    /// Returns the errors of `allocate`.
    pub fn grow<B>(
        &self,
        size: u64,
        bytes: u64,
        allocate: impl Fn(u64) -> Result<M, GpuError<B>>,
    ) -> Result<WeightRange<M>, GpuError<B>> {
        let bytes = aligned(bytes);
        let memory = match allocate(aligned(size.max(bytes))) {
            Err(error) if error.is_full() => allocate(bytes)?,
            other => other?,
        };
        let memory = Arc::new(memory);
        let free = FreeRanges::new(bytes..memory.bytes());
        let mut state = lock(&self.0);
        let slab = state.slabs.len();
        state.slabs.push(Slab { memory: Arc::clone(&memory), free });
        Ok(WeightRange { slab, memory, offset: 0, bytes, slabs: Arc::clone(&self.0) })
    }

    /// Returns the number of bytes of all slabs.
    pub fn bytes(&self) -> u64 {
        lock(&self.0).slabs.iter().map(|slab| slab.memory.bytes()).sum()
    }

    /// Returns whether there are released ranges that are not yet free.
    pub fn has_released(&self) -> bool {
        !lock(&self.0).released.is_empty()
    }

    /// Makes released ranges free, after passing each to `reuse`. The caller guarantees that submitted work
    /// is complete, or that later work waits for it.
    pub fn settle(&self, reuse: impl Fn(&M, &Range<u64>)) {
        let state = &mut *lock(&self.0);
        for (slab, range) in state.released.drain(..) {
            let slab = &mut state.slabs[slab];
            reuse(&slab.memory, &range);
            slab.free.give(range);
        }
    }
}
