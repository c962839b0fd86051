//! One token history and the pages that hold its keys and values.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::batch::LevelPolicy;
use crate::error::EngineError;
use crate::kv_cache::{PageAllocator, PageCopy, PageId, PageTable, pages_for};

/// The pages of a model's pool, counted.
#[derive(Clone, Debug)]
pub(crate) struct PagePool {
    allocator: Arc<Mutex<PageAllocator>>,
}

impl PagePool {
    pub(crate) fn new(pages: usize) -> Self {
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        Self { allocator: Arc::new(Mutex::new(PageAllocator::new(pages))) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, PageAllocator> {
        self.allocator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pages that nobody holds.
    pub(crate) fn free_pages(&self) -> usize {
        self.lock().free_pages()
    }
}

/// Tokens in order, and how many of them have keys and values in the pool. Gives its pages back
/// when dropped.
#[derive(Debug)]
pub(crate) struct Sequence {
    tokens: Vec<u32>,
    table: PageTable,
    pool: PagePool,
    /// Levels that the keys and values were computed with.
    levels: Option<LevelPolicy>,
}

impl Sequence {
    pub(crate) fn new(pool: PagePool) -> Self {
        Self { tokens: Vec::new(), table: PageTable::default(), pool, levels: None }
    }

    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens whose keys and values are in the pool.
    pub(crate) fn computed(&self) -> usize {
        self.table.length()
    }

    /// Tokens that the next steps have to compute.
    pub(crate) fn pending(&self) -> &[u32] {
        self.tokens.get(self.table.length()..).unwrap_or_default()
    }

    pub(crate) fn pages(&self) -> &[PageId] {
        self.table.pages()
    }

    /// Levels that the keys and values were computed with.
    pub(crate) fn levels(&self) -> Option<LevelPolicy> {
        self.levels
    }

    pub(crate) fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }

    pub(crate) fn extend(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }

    /// Makes `tokens` the history; what it shares with the old one from the start stays computed.
    pub(crate) fn replace(&mut self, tokens: Vec<u32>) {
        let same = self.tokens.iter().zip(&tokens).take_while(|(old, new)| old == new).count();
        self.forget_computed(same);
        self.tokens = tokens;
    }

    /// Computes with these levels from now on: what was computed with others is worth nothing, or
    /// an answer would depend on what was asked before.
    pub(crate) fn set_levels(&mut self, levels: LevelPolicy) {
        if self.levels.replace(levels) != Some(levels) {
            self.forget_computed(0);
        }
    }

    /// Forgets all tokens from `length` on.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.tokens.truncate(length);
        self.forget_computed(length);
    }

    /// Leaves keys and values of the first `length` tokens only; the tokens stay.
    pub(crate) fn forget_computed(&mut self, length: usize) {
        self.table.truncate(length, &mut self.pool.lock());
    }

    /// Makes room for the keys and values of the next `count` pending tokens.
    ///
    /// # Errors
    /// [`EngineError::OutOfPages`]; nothing has changed then.
    pub(crate) fn advance(&mut self, count: usize) -> Result<Option<PageCopy>, EngineError> {
        self.table.extend(count, &mut self.pool.lock())
    }

    /// A second sequence of the same tokens; pages are shared until one of the two writes.
    pub(crate) fn fork(&self) -> Self {
        let table = self.table.fork(&mut self.pool.lock());
        let (tokens, pool) = (self.tokens.clone(), self.pool.clone());
        Self { tokens, table, pool, levels: self.levels }
    }

    /// Pages that it would hold if all its tokens and one more were computed.
    pub(crate) fn pages_wanted(&self) -> usize {
        pages_for(self.tokens.len() + 1)
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        self.table.clear(&mut self.pool.lock());
    }
}

#[cfg(test)]
mod tests {
    use super::{PagePool, Sequence};

    #[test]
    fn replacing_keeps_what_is_the_same() {
        let pool = PagePool::new(4);
        let mut sequence = Sequence::new(pool.clone());
        sequence.extend(&[1, 2, 3, 4]);
        sequence.advance(4).unwrap();
        sequence.replace(vec![1, 2, 9, 9, 9]);
        assert_eq!((sequence.computed(), sequence.pending()), (2, &[9, 9, 9][..]));
        sequence.truncate(1);
        assert_eq!((sequence.computed(), sequence.tokens()), (1, &[1][..]));
        drop(sequence);
        assert_eq!(pool.free_pages(), 4);
    }

    #[test]
    fn a_fork_shares_pages_and_gives_back_its_own() {
        let pool = PagePool::new(4);
        let mut first = Sequence::new(pool.clone());
        first.extend(&[7; 70]);
        first.advance(70).unwrap();
        let mut second = first.fork();
        assert_eq!(pool.free_pages(), 2);
        second.push(8);
        assert!(second.advance(1).unwrap().is_some());
        assert_eq!(pool.free_pages(), 1);
        drop(first);
        assert_eq!(pool.free_pages(), 2);
        drop(second);
        assert_eq!(pool.free_pages(), 4);
    }
}
