//! Device memory allocations.

/// A device memory allocation, freed on drop.
pub trait Allocation: Send + Sync {
    /// A kernel argument: a device address, or a range of a buffer.
    type Binding: Clone + Send + Sync;

    /// Returns the size in bytes.
    fn bytes(&self) -> u64;

    /// Returns a binding of the whole allocation.
    fn binding(&self) -> Self::Binding;

    /// Returns a binding of `bytes` bytes, starting at byte `offset`.
    fn range(&self, offset: u64, bytes: u64) -> Self::Binding;
}
