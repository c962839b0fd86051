//! Memory for weights: few large allocations, slabs, of which each weight has a range.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use nestling_core::sync::whole;

use crate::allocation::Allocation;
use crate::error::GpuError;
use crate::free_ranges::FreeRanges;

/// Ranges begin at multiples of so many bytes.
pub const WEIGHT_ALIGN: u64 = 256;

/// All slabs of a device.
#[derive(Debug)]
pub struct WeightSlabs<M>(Arc<Mutex<Slabs<M>>>);

#[derive(Debug)]
struct Slabs<M> {
    slabs: Vec<Slab<M>>,
    /// Ranges that were released; work that was given to the device may still read them.
    released: Vec<(usize, Range<u64>)>,
}

#[derive(Debug)]
struct Slab<M> {
    memory: Arc<M>,
    free: FreeRanges,
}

/// Bytes of a slab; others may have them once it is dropped.
#[derive(Debug)]
pub struct WeightRange<M> {
    slab: usize,
    memory: Arc<M>,
    offset: u64,
    bytes: u64,
    slabs: Arc<Mutex<Slabs<M>>>,
}

impl<M> WeightRange<M> {
    /// Number of the slab.
    pub fn slab(&self) -> usize {
        self.slab
    }

    /// The slab.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The first byte in the slab.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl<M: Allocation> WeightRange<M> {
    /// So many of its bytes, for kernels.
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
    /// A range of so many bytes, with unspecified contents, that nobody reads; none where no slab has as
    /// many left.
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

    /// The first range, of so many bytes, of a new slab of `size` bytes, or of one that is no larger than
    /// the range where the memory is full.
    ///
    /// # Errors
    /// Those of `allocate`.
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

    /// Bytes of all slabs.
    pub fn bytes(&self) -> u64 {
        lock(&self.0).slabs.iter().map(|slab| slab.memory.bytes()).sum()
    }

    /// Whether ranges were released that nobody was given since.
    pub fn has_released(&self) -> bool {
        !lock(&self.0).released.is_empty()
    }

    /// Nothing that was given to the device is under way, or what comes waits for it: ranges that were
    /// released can be given away again. Each is shown to `reuse` before.
    pub fn settle(&self, reuse: impl Fn(&M, &Range<u64>)) {
        let state = &mut *lock(&self.0);
        for (slab, range) in state.released.drain(..) {
            let slab = &mut state.slabs[slab];
            reuse(&slab.memory, &range);
            slab.free.give(range);
        }
    }
}
