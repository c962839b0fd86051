//! Slabs of weights and their sizes.

use nestling_gpu::{Purpose, WEIGHT_ALIGN, WeightRange, WeightSlabs};

use crate::device::{Gpu, Memory};
use crate::error::WgpuError;

/// Minimum and maximum size of a slab in bytes, unless one weight is larger.
const SLAB_BYTES_MIN: u64 = 4 << 20;
const SLAB_BYTES_MAX: u64 = 256 << 20;

/// Slabs for one purpose.
#[derive(Debug)]
pub(crate) struct Slabs {
    purpose: Purpose,
    /// Bytes still to be allocated, or 0 if unknown.
    expected: u64,
    slabs: WeightSlabs<Memory>,
}

impl Slabs {
    pub fn new(purpose: Purpose) -> Self {
        Self { purpose, expected: 0, slabs: WeightSlabs::default() }
    }

    /// Sets the number of bytes to be allocated.
    pub fn expect(&mut self, bytes: u64) {
        self.expected = bytes;
    }

    /// Allocates a range with unspecified contents.
    ///
    /// # Errors
    /// Fails with [`WgpuError::Limit`] if the range exceeds a binding, with [`WgpuError::OutOfMemory`] or
    /// with [`WgpuError::OverBudget`].
    pub fn range(&mut self, gpu: &Gpu, bytes: u64) -> Result<WeightRange<Memory>, WgpuError> {
        match self.slabs.take(bytes) {
            Some(range) => Ok(range),
            None => self.grow(gpu, bytes),
        }
    }

    /// Makes released ranges available again. All recorded commands must be submitted.
    pub fn settle(&self) {
        self.slabs.settle(|_, _| {});
    }

    /// Adds a slab and returns its first range. The slab holds the expected bytes; if unknown, it is as large
    /// as all previous slabs together, within bounds.
    fn grow(&mut self, gpu: &Gpu, bytes: u64) -> Result<WeightRange<Memory>, WgpuError> {
        let most = SLAB_BYTES_MAX.min(gpu.binding_bytes_max());
        let unknown = most.min(gpu.spare_bytes_max());
        let size = match self.expected {
            0 => self.slabs.bytes().clamp(SLAB_BYTES_MIN.min(unknown), unknown),
            expected => expected.min(most),
        };
        let size = size.max(bytes).next_multiple_of(WEIGHT_ALIGN);
        self.expected = self.expected.saturating_sub(size);
        self.slabs.grow(size, bytes, |bytes| match self.purpose {
            Purpose::Weights => gpu.weights("weights", bytes),
            Purpose::Work => gpu.buffer("weights", bytes),
        })
    }
}
