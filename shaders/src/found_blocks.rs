//! Blocks of products that a shader builds from a routing.

use crate::recorder::Binding;

/// Words of a block, and alignment of a binding in words.
pub(crate) const BLOCK_WORDS: usize = 8;
pub(crate) const BLOCK_ALIGN: usize = 64;

/// Blocks of all slabs and their row pairs. All sizes and offsets are in words.
pub struct FoundBlocks {
    pub(crate) made: Binding,
    pub(crate) first: usize,
    /// Number of blocks of one slab, and distance between two slabs.
    pub(crate) count: usize,
    pub(crate) stride: usize,
    /// Offset of the pairs, and number of pairs.
    pub(crate) first_pair: usize,
    pub(crate) pairs: usize,
}

impl FoundBlocks {
    fn part(&self, first: usize, words: usize) -> Binding {
        let (offset, size) = (4 * first as u64, Some(4 * words as u64));
        Binding { buffer: self.made.buffer.clone(), offset, size }
    }

    /// Returns `count` blocks of a slab, starting at block `first`.
    pub(crate) fn of_slab(&self, slab: usize, first: usize, count: usize) -> Binding {
        let first = self.first + slab * self.stride + BLOCK_WORDS * first;
        self.part(first, BLOCK_WORDS * count)
    }

    /// Returns all pairs.
    pub(crate) fn all_pairs(&self) -> Binding {
        self.part(self.first_pair, 2 * self.pairs)
    }
}
