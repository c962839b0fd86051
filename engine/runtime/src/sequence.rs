//! A token history with its KV pages and recurrent states.

use std::sync::Arc;

use crate::prefix::{PrefixScope, PrefixStatus, page_key};
use nestling_core::batch::LevelPolicy;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::{
    PAGE_POSITIONS, PageAllocator, PageCopy, PageId, PageTable, PrefixKey,
};
use nestling_core::recurrent::{StateAllocator, StateId, StateTable, StateTrack, checkpoint_of};
use nestling_core::sync::{Mutex, MutexGuard, whole};
use nestling_formats::memory::{OutOfMemory, try_reserve, try_to_vec};

/// Reference-counted pages and recurrent states of a model's pools.
#[derive(Clone, Debug)]
pub(crate) struct SequencePool {
    counts: Arc<Mutex<PoolCounts>>,
    recurrent: bool,
}

#[derive(Debug)]
struct PoolCounts {
    pages: PageAllocator,
    states: StateAllocator,
    prefixes: PrefixStatus,
}

impl SequencePool {
    /// Creates a pool. `states` is 0 for a model without recurrent layers.
    pub(crate) fn new(pages: usize, states: usize) -> Self {
        let count = |places: usize| u32::try_from(places).unwrap_or(u32::MAX);
        let counts = PoolCounts {
            pages: PageAllocator::new(count(pages)),
            states: StateAllocator::new(count(states)),
            prefixes: PrefixStatus::default(),
        };
        Self { counts: Arc::new(Mutex::new(counts)), recurrent: states > 0 }
    }

    /// Locks the counts even if they are poisoned. Poisoned counts only release places; see
    /// [`Sequence::extend_computed`].
    fn lock(&self) -> MutexGuard<'_, PoolCounts> {
        whole(self.counts.lock())
    }

    pub(crate) fn free_pages(&self) -> usize {
        self.lock().pages.free_pages()
    }

    /// Returns the number of idle pages: free pages whose contents can still be found.
    pub(crate) fn idle_pages(&self) -> usize {
        self.lock().pages.idle_pages()
    }

    pub(crate) fn note_prefix(&self, status: PrefixStatus) {
        self.lock().prefixes.add(&status);
    }

    pub(crate) fn prefixes(&self) -> PrefixStatus {
        self.lock().prefixes
    }

    pub(crate) fn free_states(&self) -> usize {
        self.lock().states.free_states()
    }

    pub(crate) fn is_recurrent(&self) -> bool {
        self.recurrent
    }

    pub(crate) fn with<T>(
        &self,
        work: impl FnOnce(&mut PageAllocator, &mut StateAllocator) -> T,
    ) -> T {
        let counts = &mut *self.lock();
        work(&mut counts.pages, &mut counts.states)
    }
}

/// Requirements of a sequence's next step.
#[derive(Debug, Default)]
pub(crate) struct Advance {
    /// Page copy to perform first (copy on write).
    pub copy: Option<PageCopy>,
    /// Recurrent states that the step reads and writes.
    pub states: StateTrack,
}

/// A token history with the KV pages and recurrent states of its computed prefix, which are released on drop.
#[derive(Debug)]
pub(crate) struct Sequence {
    tokens: Vec<u32>,
    table: PageTable,
    /// Position and state pairs. Ends at the same length as `table` for a model with recurrent layers,
    /// otherwise empty.
    states: StateTable,
    pool: SequencePool,
    /// Levels used to compute the KV cache.
    levels: Option<LevelPolicy>,
    /// Keys for sharing its pages.
    sharing: Sharing,
    /// Source page of a copy in the running step, held so that it is not written before.
    copied: Option<PageId>,
}

/// Keys under which the pages of a sequence are kept and found.
#[derive(Clone, Debug, Default)]
struct Sharing {
    /// `None` disables sharing.
    scope: Option<PrefixScope>,
    /// Key before the first page, followed by the keys of the leading whole pages.
    keys: Vec<PrefixKey>, // [1 + pages]
    /// Number of leading pages that were kept or found.
    kept: usize,
    /// Set if the KV cache was restored from outside: such pages are never shared.
    is_restored: bool,
}

impl Sharing {
    /// Computes the keys of the first `pages` whole pages of `tokens`, or fewer if memory is exhausted.
    fn make_keys(&mut self, tokens: &[u32], pages: usize) {
        // Default: a sequence without a scope has no keys.
        let Some(scope) = self.scope.as_ref().filter(|_| !self.is_restored) else { return };
        let missing = (pages + 1).saturating_sub(self.keys.len());
        if try_reserve(&mut self.keys, "keys of pages", missing).is_err() {
            return;
        }
        if self.keys.is_empty() {
            self.keys.extend(scope.root());
        }
        // Default: pages of elastic levels have no keys.
        let Some(mut key) = self.keys.last().copied() else { return };
        let (whole, _) = tokens.as_chunks::<PAGE_POSITIONS>();
        for tokens in whole.iter().take(pages).skip(self.keys.len() - 1) {
            key = page_key(&key, tokens);
            self.keys.push(key);
        }
    }

    /// Returns the keys computed so far, one per whole page.
    fn keys(&self) -> &[PrefixKey] {
        // Default: before the first computation there are no keys.
        self.keys.get(1..).unwrap_or_default()
    }

    /// Drops the keys of pages beyond `tokens` tokens.
    fn truncate(&mut self, tokens: usize) {
        let whole = tokens / PAGE_POSITIONS;
        self.keys.truncate(whole + 1);
        self.kept = self.kept.min(whole);
    }
}

impl Sequence {
    pub(crate) fn new(pool: SequencePool) -> Self {
        let (table, states) = (PageTable::default(), StateTable::default());
        let sharing = Sharing::default();
        Self { tokens: Vec::new(), table, states, pool, levels: None, sharing, copied: None }
    }

    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the number of computed tokens: those with KV cache in the pool.
    pub(crate) fn computed(&self) -> usize {
        self.table.length()
    }

    pub(crate) fn pending(&self) -> &[u32] {
        &self.tokens[self.table.length()..]
    }

    pub(crate) fn pages(&self) -> &[PageId] {
        self.table.pages()
    }

    pub(crate) fn levels(&self) -> Option<LevelPolicy> {
        self.levels
    }

    pub(crate) fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }

    pub(crate) fn extend(&mut self, tokens: &[u32]) -> Result<(), OutOfMemory> {
        self.reserve(tokens.len())?;
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// Reserves space for `more` tokens, so that adding them does not allocate.
    pub(crate) fn reserve(&mut self, more: usize) -> Result<(), OutOfMemory> {
        try_reserve(&mut self.tokens, "tokens of a session", more)
    }

    /// Replaces the history by `tokens`. The common prefix stays computed.
    pub(crate) fn replace(&mut self, tokens: Vec<u32>) {
        let same = self.tokens.iter().zip(&tokens).take_while(|(old, new)| old == new).count();
        self.forget_computed(same);
        self.sharing.truncate(same);
        self.tokens = tokens;
    }

    /// Sets the levels of future steps.
    ///
    /// If they change, everything computed is discarded, since outputs must not depend on earlier requests.
    pub(crate) fn set_levels(&mut self, levels: LevelPolicy) {
        if self.levels.replace(levels) != Some(levels) {
            self.forget_computed(0);
        }
    }

    /// Sets the scope for sharing pages. `None` disables sharing.
    pub(crate) fn set_scope(&mut self, scope: Option<PrefixScope>) {
        if self.sharing.scope != scope {
            let is_restored = self.sharing.is_restored;
            self.sharing = Sharing { scope, is_restored, ..Sharing::default() };
        }
    }

    /// Takes over shared pages, and a recurrent state, computed earlier for the same tokens.
    ///
    /// At most the first `most` tokens are considered.
    pub(crate) fn adopt(&mut self, most: usize) -> PrefixStatus {
        let mut status = PrefixStatus::default();
        let (own, wanted) = (self.table.length() / PAGE_POSITIONS, most / PAGE_POSITIONS);
        if wanted <= own || self.sharing.is_restored {
            return status;
        }
        self.sharing.make_keys(&self.tokens, wanted);
        let mut pool = self.pool.lock();
        let keys = self.sharing.keys();
        let keys = &keys[own.min(keys.len())..];
        if keys.is_empty() {
            return status;
        }
        let found = keys.iter().map_while(|key| pool.pages.find(key));
        let mut found: Vec<PageId> = found.collect();
        let mut state = None;
        if self.pool.recurrent {
            let known = |count: &usize| pool.states.find(&keys[count - 1]);
            let last = (1..=found.len()).rev().find_map(|count| Some((count, known(&count)?)));
            found.truncate(last.map_or(0, |(count, _)| count));
            state = last.map(|(_, state)| state);
        }
        let asked = (wanted * PAGE_POSITIONS).saturating_sub(self.table.length());
        status.asked_tokens = asked as u64;
        let length = (own + found.len()) * PAGE_POSITIONS;
        if length <= self.table.length() {
            return status;
        }
        status.found_tokens = (length - self.table.length()) as u64;
        self.table.adopt(own, &found, &mut pool.pages);
        if let Some(state) = state {
            self.states.adopt(length, state, &mut pool.states);
        }
        self.sharing.kept = self.sharing.kept.max(own + found.len());
        status
    }

    /// Releases the source page of a copy once the step has made it.
    fn release_copied(&mut self) {
        if let Some(page) = self.copied.take() {
            self.pool.lock().pages.release(page);
        }
    }

    /// Keeps the whole computed pages, and the recurrent state after them, for others to find. Called after a
    /// step.
    ///
    /// If another sequence already keeps a page with the same key, that page replaces the own one.
    pub(crate) fn keep_computed(&mut self) {
        self.release_copied();
        let whole = self.table.length() / PAGE_POSITIONS;
        if self.sharing.kept >= whole || self.sharing.is_restored {
            return;
        }
        self.sharing.make_keys(&self.tokens, whole);
        let mut pool = self.pool.lock();
        let keys = self.sharing.keys();
        for (index, key) in keys.iter().enumerate().take(whole).skip(self.sharing.kept) {
            let Some(&page) = self.table.pages().get(index) else { break };
            if !pool.pages.keep(page, *key)
                && let Some(same) = pool.pages.find(key)
            {
                self.table.replace(index, same, &mut pool.pages);
            }
            self.states.keep((index + 1) * PAGE_POSITIONS, *key, &mut pool.states);
        }
        self.sharing.kept = whole;
    }

    /// Returns the keys of its kept whole pages.
    pub(crate) fn kept_keys(&self) -> &[PrefixKey] {
        let keys = self.sharing.keys();
        &keys[..self.sharing.kept.min(keys.len())]
    }

    /// Removes its pages and states from the shared prefixes and discards them, so that they are recomputed.
    pub(crate) fn disown_computed(&mut self) {
        let mut pool = self.pool.lock();
        for &page in self.table.pages() {
            pool.pages.forget(page);
        }
        self.states.forget_kept(&mut pool.states);
        drop(pool);
        self.forget_computed(0);
    }

    pub(crate) fn truncate(&mut self, length: usize) {
        self.tokens.truncate(length);
        self.sharing.truncate(length);
        self.forget_computed(length);
    }

    pub(crate) fn states(&self) -> usize {
        self.states.count()
    }

    /// Returns whether no other sequence holds a page or state of the pool.
    pub(crate) fn holds_all_that_is_taken(&self) -> bool {
        let pool = self.pool.lock();
        let pages = pool.pages.pages() - pool.pages.free_pages();
        let states = pool.states.states() - pool.states.free_states();
        let own_pages = self.table.pages().len() + usize::from(self.copied.is_some());
        (pages, states) == (own_pages, self.states.count())
    }

    /// Returns the recurrent state after the computed tokens.
    pub(crate) fn state(&self) -> Option<StateId> {
        self.states.newest()
    }

    /// Discards everything computed after the first `length` tokens, and keeps the tokens.
    ///
    /// With recurrent layers, falls back to the last retained state at or before `length`.
    pub(crate) fn forget_computed(&mut self, length: usize) {
        self.release_copied();
        let mut pool = self.pool.lock();
        self.states.truncate(length, &mut pool.states);
        let length = if self.pool.recurrent { self.states.length() } else { length };
        self.table.truncate(length, &mut pool.pages);
        self.sharing.kept = self.sharing.kept.min(self.table.length() / PAGE_POSITIONS);
        self.sharing.is_restored &= self.table.length() > 0;
    }

    /// Allocates pages and states for the next `count` pending tokens.
    ///
    /// # Errors
    /// Fails with [`EngineError::OutOfPages`] or [`EngineError::OutOfStates`]. The computed part is
    /// unchanged.
    pub(crate) fn advance(&mut self, count: usize) -> Result<Advance, EngineError> {
        self.extend_computed(count, checkpoint_of(self.tokens.len()))
    }

    /// Works as [`Self::advance`] for contents restored from outside, all at once.
    ///
    /// # Errors
    /// Fails as [`Self::advance`] does.
    pub(crate) fn advance_restored(&mut self, count: usize) -> Result<(), EngineError> {
        self.extend_computed(count, None)?;
        self.sharing.is_restored = true;
        Ok(())
    }

    fn extend_computed(
        &mut self,
        count: usize,
        checkpoint: Option<usize>,
    ) -> Result<Advance, EngineError> {
        self.release_copied();
        let before = self.table.length();
        // Counts that a panic left half changed might assign a page to two sequences.
        let damaged = |_| EngineError::Panicked { what: "counting the pages of sessions" };
        let mut pool = self.pool.counts.lock().map_err(damaged)?;
        let mut states = StateTrack::default();
        if self.pool.recurrent && count > 0 {
            states = self.states.extend(before + count, checkpoint, &mut pool.states)?;
        }
        match self.table.extend(count, &mut pool.pages) {
            Ok(copy) => {
                if let Some(PageCopy { source, .. }) = copy {
                    pool.pages.retain(source);
                    self.copied = Some(source);
                }
                Ok(Advance { copy, states })
            }
            Err(error) => {
                self.states.truncate(before, &mut pool.states);
                Err(error)
            }
        }
    }

    /// Creates a second sequence of the same tokens. Pages are shared until one of the two writes.
    ///
    /// # Errors
    /// Fails with [`OutOfMemory`].
    pub(crate) fn fork(&self) -> Result<Self, OutOfMemory> {
        let tokens = try_to_vec("tokens of a session", &self.tokens)?;
        let mut pool = self.pool.lock();
        let table = self.table.fork(&mut pool.pages);
        let states = self.states.fork(&mut pool.states);
        drop(pool);
        let (pool, sharing) = (self.pool.clone(), self.sharing.clone());
        Ok(Self { tokens, table, states, pool, levels: self.levels, sharing, copied: None })
    }

    /// Creates a read-only fork. It holds only the newest recurrent state.
    pub(crate) fn fork_to_read(&self) -> Result<Self, OutOfMemory> {
        let mut fork = self.fork()?;
        fork.states.forget_older(&mut fork.pool.lock().states);
        Ok(fork)
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        self.release_copied();
        let mut pool = self.pool.lock();
        self.table.clear(&mut pool.pages);
        self.states.truncate(0, &mut pool.states);
    }
}

#[cfg(test)]
mod tests;
