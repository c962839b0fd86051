//! Memory for weights: how large the slabs are that they lie in.

use nestling_gpu::{Purpose, WEIGHT_ALIGN, WeightRange, WeightSlabs};

use crate::device::{Gpu, Memory};
use crate::error::WgpuError;

/// Bytes of the smallest and the largest slab, unless one thing is larger.
const SLAB_BYTES_MIN: u64 = 4 << 20;
const SLAB_BYTES_MAX: u64 = 256 << 20;

/// Slabs whose memory is for one purpose.
#[derive(Debug)]
pub(crate) struct Slabs {
    purpose: Purpose,
    /// Bytes that are still to come, where somebody said so.
    expected: u64,
    slabs: WeightSlabs<Memory>,
}

impl Slabs {
    pub fn new(purpose: Purpose) -> Self {
        Self { purpose, expected: 0, slabs: WeightSlabs::default() }
    }

    /// So many bytes are going to be asked for.
    pub fn expect(&mut self, bytes: u64) {
        self.expected = bytes;
    }

    /// A range of so many bytes, with unspecified contents.
    ///
    /// # Errors
    /// [`WgpuError::Limit`] for more than a shader sees at once; [`WgpuError::OutOfMemory`];
    /// [`WgpuError::OverBudget`].
    pub fn range(&mut self, gpu: &Gpu, bytes: u64) -> Result<WeightRange<Memory>, WgpuError> {
        match self.slabs.take(bytes) {
            Some(range) => Ok(range),
            None => self.grow(gpu, bytes),
        }
    }

    /// Ranges that were released can be given away again: all that was recorded is submitted.
    pub fn settle(&self) {
        self.slabs.settle(|_, _| {});
    }

    /// A new slab, for all that is known to come or as large as all before it together within bounds, and
    /// its first range.
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
