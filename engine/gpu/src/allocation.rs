//! Memory of a device.

/// An allocation of a device's memory, freed when it is dropped.
pub trait Allocation: Send + Sync {
    /// Where a kernel finds something: an address, or a range of a buffer.
    type Binding: Clone + Send + Sync;

    /// Its bytes.
    fn bytes(&self) -> u64;

    /// The whole of it.
    fn binding(&self) -> Self::Binding;

    /// A range of it.
    fn range(&self, offset: u64, bytes: u64) -> Self::Binding;
}
