//! Memory for weights: large buffers, slabs, that matrices have places in.
//!
//! A place that is let go of is given away again after the next submission: what was recorded
//! before may still read it, and what is written from then on comes after.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nestling_gpu::{FreeRanges, Purpose};

use crate::device::{Gpu, Memory};
use crate::error::WgpuError;

/// Places begin at multiples of this, which suits every binding.
pub(crate) const ALIGN: u64 = 256;

/// Bytes of the first slab, and the most of one that holds several matrices.
const SLAB_BYTES_MIN: u64 = 4 << 20;
const SLAB_BYTES_MAX: u64 = 256 << 20;

/// All slabs of a model.
#[derive(Debug)]
pub(crate) struct Slabs {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    purpose: Purpose,
    /// Bytes that are known to come.
    expected: u64,
    slabs: Vec<Slab>,
    /// Places that nobody holds, and that recorded commands may read.
    left: Vec<(usize, Range<u64>)>,
}

#[derive(Debug)]
struct Slab {
    buffer: Memory,
    free: FreeRanges,
}

/// Part of a slab, held.
#[derive(Debug)]
pub struct Place {
    /// Tells its slab from the others.
    pub slab: usize,
    pub buffer: wgpu::Buffer,
    /// A multiple of 256.
    pub offset: u64,
    bytes: u64,
    /// The slot of an expert that it is a part of.
    pub slot: Option<usize>,
    /// Who gives it away again; nobody where a slot does.
    state: Option<Arc<Mutex<State>>>,
}

impl Place {
    /// Part of a slot.
    pub fn of_slot(slab: usize, buffer: wgpu::Buffer, slot: usize, offset: u64) -> Self {
        Self { slab, buffer, offset, bytes: 0, slot: Some(slot), state: None }
    }

    /// Where it begins in its slab.
    pub fn word(&self) -> u32 {
        (self.offset / 4) as u32
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(state) = &self.state {
            lock(state).left.push((self.slab, self.offset..self.offset + self.bytes));
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slabs {
    pub fn new(purpose: Purpose) -> Self {
        let (slabs, left) = (Vec::new(), Vec::new());
        Self { state: Arc::new(Mutex::new(State { purpose, expected: 0, slabs, left })) }
    }

    /// So many bytes are going to be asked for.
    pub fn expect(&self, bytes: u64) {
        lock(&self.state).expected = bytes;
    }

    /// A place of so many bytes.
    ///
    /// # Errors
    /// [`WgpuError::Limit`] for more than a shader sees at once; [`WgpuError::OutOfMemory`].
    pub fn place(&self, gpu: &Gpu, bytes: u64) -> Result<Place, WgpuError> {
        let bytes = bytes.max(1).next_multiple_of(ALIGN);
        let mut state = lock(&self.state);
        let found =
            (0..).zip(&mut state.slabs).find_map(|(slab, one)| Some((slab, one.free.take(bytes)?)));
        let (slab, offset) = match found {
            Some(found) => found,
            None => state.grow(gpu, bytes)?,
        };
        let buffer = state.slabs[slab].buffer.raw.clone();
        Ok(Place { slab, buffer, offset, bytes, slot: None, state: Some(Arc::clone(&self.state)) })
    }

    /// Places that were let go of can be given away again: all that was recorded is submitted.
    pub fn settle(&self) {
        let state = &mut *lock(&self.state);
        for (slab, range) in state.left.drain(..) {
            state.slabs[slab].free.give(range);
        }
    }
}

impl State {
    /// A new slab, for all that is known to come or as large as all before it together within bounds, and
    /// its first place.
    fn grow(&mut self, gpu: &Gpu, bytes: u64) -> Result<(usize, u64), WgpuError> {
        let all: u64 = self.slabs.iter().map(|slab| slab.buffer.size()).sum();
        let most = SLAB_BYTES_MAX.min(gpu.binding_bytes_max());
        let unknown = most.min(gpu.spare_bytes_max());
        let size = match self.expected {
            0 => all.clamp(SLAB_BYTES_MIN.min(unknown), unknown),
            expected => expected.min(most),
        };
        let size = size.max(bytes).next_multiple_of(ALIGN);
        self.expected = self.expected.saturating_sub(size);
        let new = |bytes| match self.purpose {
            Purpose::Weights => gpu.weights("weights", bytes),
            Purpose::Work => gpu.buffer("weights", bytes),
        };
        let buffer = match new(size) {
            Err(error) if error.is_full() => new(bytes)?,
            other => other?,
        };
        let rest = bytes..buffer.size();
        self.slabs.push(Slab { buffer, free: FreeRanges::new(rest) });
        Ok((self.slabs.len() - 1, 0))
    }
}
