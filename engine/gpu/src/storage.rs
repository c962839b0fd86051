//! Memory of a device, as what both backends share sees it.

use nestling_core::EngineError;
use nestling_core::kv_cache::KvShape;

use crate::allocation::Allocation;
use crate::device_budget::Purpose;
use crate::weight_slabs::WeightRange;

/// Allocates memory of a device.
pub trait Storage: Sized + Send + 'static {
    /// Where a kernel finds something.
    type Binding: Clone + Send + Sync;
    /// An allocation.
    type Memory: Allocation<Binding = Self::Binding>;
    /// What kernels read of the experts of a layer.
    type TableEntries: Send + Sync;
    /// Blocks of products that kernels make from a routing.
    type FoundBlocks;

    /// Whether an RMSNorm can leave its rows in int8 as well.
    const KEEPS_INT8: bool;

    /// Largest allocation that a kernel can see at once.
    fn allocation_bytes_max(&self) -> u64;

    /// Bytes that memory which grows to so many is given.
    fn roomy_bytes(&self, bytes: u64) -> u64;

    /// KV pages that are allocated at once.
    fn chunk_pages(shape: &KvShape) -> usize;

    /// Memory with unspecified contents.
    ///
    /// # Errors
    /// A device whose memory is full, or a memory budget without room.
    fn allocate(&mut self, what: &'static str, bytes: u64) -> Result<Self::Memory, EngineError>;

    /// Replaces an allocation by a larger one with unspecified contents. Recorded work may still use
    /// the old one.
    ///
    /// # Errors
    /// As [`Storage::allocate`].
    fn reallocate(
        &mut self,
        memory: &mut Self::Memory,
        what: &'static str,
        bytes: u64,
    ) -> Result<(), EngineError>;

    /// Memory with these bytes, behind all that was recorded.
    ///
    /// # Errors
    /// As [`Storage::allocate`]; a device that is lost.
    fn upload(&mut self, what: &'static str, bytes: &[u8]) -> Result<Self::Memory, EngineError>;

    /// Weights, for whatever is recorded from now on. `purpose` says whose part of a memory budget they are.
    ///
    /// # Errors
    /// As [`Storage::allocate`]; a device that is lost.
    fn upload_weights(
        &mut self,
        purpose: Purpose,
        bytes: &[u8],
    ) -> Result<WeightRange<Self::Memory>, EngineError>;

    /// Counts the steps of which nobody knows what took place: what kernels left in memory before is
    /// not relied on.
    fn epoch(&self) -> u64;
}

/// A size as kernels take it.
///
/// # Errors
/// [`EngineError::Limit`] for one that does not fit.
pub fn word(what: &'static str, size: usize) -> Result<u32, EngineError> {
    let limit = u64::from(u32::MAX);
    u32::try_from(size).map_err(|_| EngineError::Limit { what, limit, found: size as u64 })
}
