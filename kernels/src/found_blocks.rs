//! Blocks of products that a kernel builds from a routing.

use crate::driver::Address;

/// Blocks in device memory and their row pairs.
#[derive(Clone, Copy)]
pub struct FoundBlocks {
    pub(crate) first: Address,
    pub(crate) count: usize,
    pub(crate) pairs: Address,
    /// True if a block may have several pairs.
    pub(crate) are_several: bool,
}
