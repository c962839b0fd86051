//! Pages of keys and values: who holds which page. The contents live in the backend's pool.

use serde::{Deserialize, Serialize};

use nestling_import::{LayerConfig, ModelConfig, TokenMixer};

use crate::error::EngineError;
use crate::keyed_places::KeyedPlaces;
pub use crate::keyed_places::{KeptPlace, PrefixKey};

/// Positions that one page holds, of every layer.
pub const PAGE_POSITIONS: usize = 64;

/// A page of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

/// How keys and values are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvDtype {
    /// 32-bit floats: as computed.
    #[default]
    F32,
    /// 16-bit floats, rounded half to even: half the memory.
    F16,
    /// 8-bit integers with a scale for each position's key and value of every head: about a
    /// quarter of the memory. Half to even, the largest magnitude is 127.
    Int8,
}

impl KvDtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::Int8 => 1,
        }
    }

    /// Bytes beside the elements of each head's key or value.
    pub const fn scale_bytes(self) -> usize {
        match self {
            Self::F32 | Self::F16 => 0,
            Self::Int8 => 4,
        }
    }
}

/// Where the values of a head are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvValues {
    /// Beside its keys, `[head_dim]` each.
    #[default]
    Beside,
    /// A key's first so many elements are the value too: attention to latents. Integers have one
    /// scale for these and one for the others.
    KeyPrefix(usize),
}

impl KvValues {
    /// Elements of a value.
    pub const fn dim(self, head_dim: usize) -> usize {
        match self {
            Self::Beside => head_dim,
            Self::KeyPrefix(dim) => dim,
        }
    }
}

/// What the pool of one layer is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Heads of keys (and of values).
    pub num_key_value_heads: usize,
    /// Elements of a key.
    pub head_dim: usize,
    /// Where values are.
    pub values: KvValues,
    /// Element type.
    pub dtype: KvDtype,
    /// Most pages that the pool may ever hold.
    pub pages: usize,
}

impl KvShape {
    /// What a layer keeps, if it keeps keys and values.
    pub fn of_layer(layer: &LayerConfig, dtype: KvDtype, pages: usize) -> Option<Self> {
        let (num_key_value_heads, head_dim, values) = match &layer.mixer {
            TokenMixer::Attention(attention) => {
                (attention.num_key_value_heads, attention.head_dim, KvValues::Beside)
            }
            TokenMixer::Latent(latent) => {
                (1, latent.key_dim(), KvValues::KeyPrefix(latent.kv_lora_rank))
            }
            TokenMixer::DeltaNet(_) => return None,
        };
        Some(Self { num_key_value_heads, head_dim, values, dtype, pages })
    }

    /// Bytes of one page in all layers.
    pub fn model_page_bytes(config: &ModelConfig, dtype: KvDtype) -> usize {
        let layers = config.layers.iter();
        layers
            .filter_map(|layer| Self::of_layer(layer, dtype, 1))
            .map(|shape| shape.page_bytes())
            .sum()
    }

    /// Bytes of one page in one layer: keys and values of [`PAGE_POSITIONS`] positions.
    pub fn page_bytes(&self) -> usize {
        let (elements, scales) = (self.head_dim * self.dtype.bytes(), 2 * self.dtype.scale_bytes());
        let position = match self.values {
            KvValues::Beside => 2 * elements + scales,
            KvValues::KeyPrefix(_) => elements + scales,
        };
        PAGE_POSITIONS * self.num_key_value_heads * position
    }
}

/// Pages needed for that many positions.
pub fn pages_for(positions: usize) -> usize {
    positions.div_ceil(PAGE_POSITIONS)
}

/// Counts the holders of every page of one pool, and keeps pages under keys to be found again.
#[derive(Debug)]
pub struct PageAllocator {
    places: KeyedPlaces,
}

impl PageAllocator {
    /// An allocator of that many empty pages.
    pub fn new(pages: u32) -> Self {
        Self { places: KeyedPlaces::new(pages) }
    }

    /// Pages that can be taken: empty ones, and idle ones, which nobody but the cache of prefixes holds.
    pub fn free_pages(&self) -> usize {
        self.places.free()
    }

    /// Pages of [`Self::free_pages`] that are found again as long as they are not taken.
    pub fn idle_pages(&self) -> usize {
        self.places.idle()
    }

    /// Pages of the pool.
    pub fn pages(&self) -> usize {
        self.places.places()
    }

    /// Takes an empty page, else the one that was idle for longest.
    ///
    /// # Errors
    /// [`EngineError::OutOfPages`].
    pub fn allocate(&mut self) -> Result<PageId, EngineError> {
        let out_of_pages = EngineError::OutOfPages { pages: self.pages() };
        self.places.take().map(PageId).ok_or(out_of_pages)
    }

    /// Adds a holder to a page that is in use or was found.
    pub fn retain(&mut self, page: PageId) {
        self.places.retain(page.0);
    }

    /// Removes a holder; the last one frees the page.
    pub fn release(&mut self, page: PageId) {
        self.places.release(page.0);
    }

    /// How many hold the page; the cache of prefixes is one of them.
    pub fn references(&self, page: PageId) -> u32 {
        self.places.holders(page.0)
    }

    /// Keeps a page that is computed in whole to be found again; false where its key is taken already.
    pub fn keep(&mut self, page: PageId, key: PrefixKey) -> bool {
        self.places.keep(page.0, key)
    }

    /// The page that is kept under a key. It may be taken at any time before it is retained.
    pub fn find(&self, key: &PrefixKey) -> Option<PageId> {
        self.places.find(key).map(PageId)
    }

    /// [`Self::find`], with what tells whether it was kept all the time between two calls.
    pub fn find_kept(&self, key: &PrefixKey) -> Option<KeptPlace<PageId>> {
        self.places.find_kept(key).map(|kept| kept.map(PageId))
    }

    /// The page is not to be found any more; those who hold it keep it.
    pub fn forget(&mut self, page: PageId) {
        self.places.forget(page.0);
    }
}

/// A page that must be copied before it is written, since somebody else reads it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// The shared page.
    pub source: PageId,
    /// The page that replaces it in the table.
    pub destination: PageId,
}

/// The pages of one sequence. Position `p` lies in page `p / PAGE_POSITIONS`.
///
/// A table does not know its allocator: whoever drops one calls [`PageTable::clear`] first.
#[derive(Debug, Default)]
pub struct PageTable {
    pages: Vec<PageId>,
    length: usize,
}

impl PageTable {
    /// Pages in order of positions.
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }

    /// Positions in use.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Makes room for `positions` more and counts them as used. The copies returned, at most one,
    /// must be made in the pool before the new positions are written.
    ///
    /// # Errors
    /// [`EngineError::OutOfPages`]; the table is then as it was.
    pub fn extend(
        &mut self,
        positions: usize,
        allocator: &mut PageAllocator,
    ) -> Result<Option<PageCopy>, EngineError> {
        if positions == 0 {
            return Ok(None);
        }
        let written = self.length / PAGE_POSITIONS;
        let wanted = pages_for(self.length + positions);
        if let Some(&page) = self.pages.get(written)
            && wanted.saturating_sub(self.pages.len()) == allocator.free_pages()
        {
            // No page is left for a copy: what is kept under a key goes first.
            allocator.forget(page);
        }
        let shared = self.pages.get(written).copied().filter(|&p| allocator.references(p) > 1);
        let fresh = wanted.saturating_sub(self.pages.len()) + usize::from(shared.is_some());
        if fresh > allocator.free_pages() {
            return Err(EngineError::OutOfPages { pages: allocator.pages() });
        }
        let mut copy = None;
        if let Some(source) = shared {
            let destination = allocator.allocate()?;
            allocator.release(source);
            self.pages[written] = destination;
            copy = Some(PageCopy { source, destination });
        }
        while self.pages.len() < wanted {
            self.pages.push(allocator.allocate()?);
        }
        self.length += positions;
        // A page whose used part is empty need not be copied.
        Ok(copy.filter(|_| !(self.length - positions).is_multiple_of(PAGE_POSITIONS)))
    }

    /// Forgets every position from `length` on and releases the pages that this empties.
    pub fn truncate(&mut self, length: usize, allocator: &mut PageAllocator) {
        self.length = self.length.min(length);
        // The last ones first: they are worth nothing without those before them.
        for page in self.pages.drain(pages_for(self.length).min(self.pages.len())..).rev() {
            allocator.release(page);
        }
    }

    /// Goes on with pages that were found, in place of what it has after the first `whole` pages. All positions of
    /// these, and of those found, are in use then.
    pub fn adopt(&mut self, whole: usize, found: &[PageId], allocator: &mut PageAllocator) {
        for &page in found {
            allocator.retain(page);
        }
        self.truncate(whole * PAGE_POSITIONS, allocator);
        self.pages.extend_from_slice(found);
        self.length = self.pages.len() * PAGE_POSITIONS;
    }

    /// Replaces a page by another with the same contents.
    pub fn replace(&mut self, index: usize, page: PageId, allocator: &mut PageAllocator) {
        if let Some(own) = self.pages.get_mut(index).filter(|own| **own != page) {
            allocator.retain(page);
            allocator.release(std::mem::replace(own, page));
        }
    }

    /// Releases every page.
    pub fn clear(&mut self, allocator: &mut PageAllocator) {
        self.truncate(0, allocator);
    }

    /// A second table of the same positions; pages are shared until one of the two writes.
    pub fn fork(&self, allocator: &mut PageAllocator) -> Self {
        for &page in &self.pages {
            allocator.retain(page);
        }
        Self { pages: self.pages.clone(), length: self.length }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_copies_the_page_it_writes_and_no_other() {
        let mut allocator = PageAllocator::new(8);
        let mut first = PageTable::default();
        assert_eq!(first.extend(100, &mut allocator).unwrap(), None);
        let mut second = first.fork(&mut allocator);
        let copy = second.extend(1, &mut allocator).unwrap().unwrap();
        assert_eq!(copy.source, first.pages()[1]);
        assert_eq!(second.pages()[0], first.pages()[0]);
        assert_eq!(second.pages()[1], copy.destination);
        assert_eq!(first.extend(1, &mut allocator).unwrap(), None, "the only holder now");
        first.clear(&mut allocator);
        second.clear(&mut allocator);
        assert_eq!(allocator.free_pages(), 8);
    }

    #[test]
    fn an_empty_shared_page_is_not_copied() {
        let mut allocator = PageAllocator::new(4);
        let mut first = PageTable::default();
        first.extend(64, &mut allocator).unwrap();
        let mut second = first.fork(&mut allocator);
        assert_eq!(second.extend(1, &mut allocator).unwrap(), None);
        assert_eq!(second.pages().len(), 2);
    }

    #[test]
    fn a_full_pool_leaves_the_table_as_it_was() {
        let mut allocator = PageAllocator::new(2);
        let mut table = PageTable::default();
        table.extend(10, &mut allocator).unwrap();
        assert!(matches!(
            table.extend(1000, &mut allocator),
            Err(EngineError::OutOfPages { pages: 2 })
        ));
        assert_eq!((table.length(), allocator.free_pages()), (10, 1));
        table.truncate(0, &mut allocator);
        assert_eq!(allocator.free_pages(), 2);
    }
}
