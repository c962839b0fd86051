//! Blocks of products that a kernel makes from a routing.

use crate::driver::Address;

/// Blocks in memory of the device and the pairs of rows that they are for.
#[derive(Clone, Copy)]
pub struct FoundBlocks {
    pub(crate) first: Address,
    pub(crate) count: usize,
    pub(crate) pairs: Address,
    /// Whether some may have several pairs.
    pub(crate) are_several: bool,
}
