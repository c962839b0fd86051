//! Memory for weights: few large allocations, cut into places.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nestling_gpu::FreeRanges;

use crate::driver::{Address, DeviceMemory, Driver};
use crate::error::CudaError;

/// Places begin at multiples of so many bytes.
const ALIGN: u64 = 256;

/// Bytes of the smallest and the largest slab, unless one thing is larger.
const SLAB_BYTES_MIN: u64 = 16 << 20;
const SLAB_BYTES_MAX: u64 = 1 << 30;

/// All slabs of a device.
#[derive(Clone, Default)]
pub(crate) struct Slabs {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    slabs: Vec<Slab>,
    /// Places that were let go of; work that was given to the device may still read them.
    left: Vec<(usize, Range<u64>)>,
}

struct Slab {
    memory: DeviceMemory,
    free: FreeRanges,
}

/// Bytes in a slab; others may have them once it is dropped.
pub struct Place {
    slab: usize,
    offset: u64,
    bytes: u64,
    address: Address,
    state: Arc<Mutex<State>>,
}

/// Whether a place may be written at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    /// Nothing reads it.
    None,
    /// Work that was recorded or given to the device may still read what was there.
    Earlier,
}

impl Place {
    pub fn address(&self) -> Address {
        self.address
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let range = self.offset..self.offset + self.bytes;
        lock(&self.state).left.push((self.slab, range));
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slabs {
    /// A place of so many bytes, with unspecified contents: one that nobody reads if there is one.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::OverBudget`].
    pub fn place(&self, driver: &Arc<Driver>, bytes: u64) -> Result<(Place, Readers), CudaError> {
        let bytes = bytes.max(1).next_multiple_of(ALIGN);
        let mut state = lock(&self.state);
        let mut readers = Readers::None;
        let mut found = state.take(bytes);
        if found.is_none() {
            found = match state.grow(driver, bytes) {
                Ok(found) => Some(found),
                Err(error) if error.is_full() && !state.left.is_empty() => {
                    readers = Readers::Earlier;
                    state.settle();
                    state.take(bytes)
                }
                Err(error) => return Err(error),
            };
        }
        let (slab, offset) = found.ok_or(CudaError::OutOfMemory { what: "weights", bytes })?;
        let address = state.slabs[slab].memory.address() + offset;
        Ok((Place { slab, offset, bytes, address, state: Arc::clone(&self.state) }, readers))
    }

    /// Nothing that was given to the device is under way: places that were let go of can be given
    /// away again.
    pub fn settle(&self) {
        let mut state = lock(&self.state);
        for (slab, range) in &state.left {
            state.slabs[*slab].memory.forget(range.start, range.end - range.start);
        }
        state.settle();
    }
}

impl State {
    fn take(&mut self, bytes: u64) -> Option<(usize, u64)> {
        let mut slabs = (0..).zip(&mut self.slabs);
        slabs.find_map(|(slab, one)| Some((slab, one.free.take(bytes)?)))
    }

    fn settle(&mut self) {
        for (slab, range) in self.left.drain(..) {
            self.slabs[slab].free.give(range);
        }
    }

    /// A new slab, as large as all before it together within bounds, and its first place.
    fn grow(&mut self, driver: &Arc<Driver>, bytes: u64) -> Result<(usize, u64), CudaError> {
        let all: u64 = self.slabs.iter().map(|slab| slab.memory.bytes()).sum();
        // Little of a budget must lie unused.
        let most = SLAB_BYTES_MAX.min(driver.budget() / 16);
        let size = all.max(SLAB_BYTES_MIN).min(most).max(bytes).next_multiple_of(ALIGN);
        let memory = match driver.allocate("weights", size) {
            Err(error) if error.is_full() => driver.allocate("weights", bytes)?,
            other => other?,
        };
        let rest = bytes..memory.bytes();
        self.slabs.push(Slab { memory, free: FreeRanges::new(rest) });
        Ok((self.slabs.len() - 1, 0))
    }
}
