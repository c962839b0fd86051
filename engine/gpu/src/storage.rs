//! Trait for allocating memory of a device.

use nestling_core::EngineError;
use nestling_core::kv_cache::KvShape;

use crate::allocation::Allocation;
use crate::device_budget::Purpose;
use crate::weight_slabs::WeightRange;

/// Allocator of device memory.
pub trait Storage: Sized + Send + 'static {
    /// A kernel argument: a device address, or a range of a buffer.
    type Binding: Clone + Send + Sync;
    /// A memory allocation.
    type Memory: Allocation<Binding = Self::Binding>;
    /// Expert entries of a layer's table, as kernels read them.
    type TableEntries: Send + Sync;
    /// Blocks of products that kernels build from a routing.
    type FoundBlocks;

    /// True if an RMSNorm kernel can also write its rows in int8.
    const KEEPS_INT8: bool;

    /// Returns the size in bytes of the largest allocation that a kernel can address.
    fn allocation_bytes_max(&self) -> u64;

    /// Returns the size to allocate for growing memory that requires `bytes` bytes.
    fn roomy_bytes(&self, bytes: u64) -> u64;

    /// Returns the number of KV pages allocated at once.
    fn chunk_pages(shape: &KvShape) -> usize;

    /// Allocates memory with unspecified contents.
    ///
    /// # Errors
    /// Returns an error if the device is out of memory or the memory budget is exhausted.
    fn allocate(&mut self, what: &'static str, bytes: u64) -> Result<Self::Memory, EngineError>;

    /// Replaces an allocation by a larger one with unspecified contents. Recorded work may still use the old
    /// one.
    ///
    /// # Errors
    /// Fails like [`Storage::allocate`].
    fn reallocate(
        &mut self,
        memory: &mut Self::Memory,
        what: &'static str,
        bytes: u64,
    ) -> Result<(), EngineError>;

    /// Allocates memory and records writing `bytes` to it, after all recorded commands.
    ///
    /// # Errors
    /// Fails like [`Storage::allocate`], or if the device is lost.
    fn upload(&mut self, what: &'static str, bytes: &[u8]) -> Result<Self::Memory, EngineError>;

    /// Uploads weights for use by commands recorded later. `purpose` selects the part of the memory budget.
    ///
    /// # Errors
    /// Fails like [`Storage::allocate`], or if the device is lost.
    fn upload_weights(
        &mut self,
        purpose: Purpose,
        bytes: &[u8],
    ) -> Result<WeightRange<Self::Memory>, EngineError>;

    /// Returns the number of steps that were aborted with unknown progress. Device data written by kernels in
    /// an earlier epoch must not be relied on.
    fn epoch(&self) -> u64;
}

/// Converts a size to a 32-bit kernel argument.
///
/// # Errors
/// Fails with [`EngineError::Limit`] if the size does not fit.
pub fn word(what: &'static str, size: usize) -> Result<u32, EngineError> {
    let limit = u64::from(u32::MAX);
    u32::try_from(size).map_err(|_| EngineError::Limit { what, limit, found: size as u64 })
}
