//! Blocks of products that a shader makes from a routing.

use crate::recorder::Binding;

/// Words of a block, and words that a binding's first one is a multiple of.
pub(crate) const BLOCK_WORDS: usize = 8;
pub(crate) const BLOCK_ALIGN: usize = 64;

/// Blocks of all slabs and the pairs of rows that they are for, in words.
pub struct FoundBlocks {
    pub(crate) made: Binding,
    pub(crate) first: usize,
    /// Blocks of one slab, and words from one slab to the next.
    pub(crate) count: usize,
    pub(crate) stride: usize,
    /// Where pairs begin, and how many there are.
    pub(crate) first_pair: usize,
    pub(crate) pairs: usize,
}

impl FoundBlocks {
    fn part(&self, first: usize, words: usize) -> Binding {
        let (offset, size) = (4 * first as u64, Some(4 * words as u64));
        Binding { buffer: self.made.buffer.clone(), offset, size }
    }

    /// So many of a slab, from one on.
    pub(crate) fn of_slab(&self, slab: usize, first: usize, count: usize) -> Binding {
        let first = self.first + slab * self.stride + BLOCK_WORDS * first;
        self.part(first, BLOCK_WORDS * count)
    }

    /// All pairs.
    pub(crate) fn all_pairs(&self) -> Binding {
        self.part(self.first_pair, 2 * self.pairs)
    }
}
