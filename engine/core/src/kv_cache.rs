//! Reference counts of KV pages. The contents are in the backend's pool.

use serde::{Deserialize, Serialize};

use nestling_import::{LayerConfig, ModelConfig, TokenMixer};

use crate::error::EngineError;
use crate::keyed_places::KeyedPlaces;
pub use crate::keyed_places::{KeptPlace, PrefixKey};

/// Number of positions per page, in each layer.
pub const PAGE_POSITIONS: usize = 64;

/// Index of a page in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PageId(pub u32);

/// Storage type of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvDtype {
    /// 32-bit floats, as computed.
    #[default]
    F32,
    /// 16-bit floats, rounded half to even: half the memory.
    F16,
    /// 8-bit integers with a scale per position and head for key and value: about a quarter of the memory.
    /// Rounds half to even; the largest magnitude is 127.
    Int8,
}

impl KvDtype {
    /// Returns the size of one element in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::Int8 => 1,
        }
    }

    /// Returns the size in bytes of the scale of each head's key or value.
    pub const fn scale_bytes(self) -> usize {
        match self {
            Self::F32 | Self::F16 => 0,
            Self::Int8 => 4,
        }
    }
}

/// Storage of a head's values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvValues {
    /// Separate from the keys, `[head_dim]` each.
    #[default]
    Beside,
    /// The first `n` elements of the key, as in latent attention. Integers have one scale for these elements
    /// and one for the rest.
    KeyPrefix(usize),
}

impl KvValues {
    /// Returns the number of elements of a value.
    pub const fn dim(self, head_dim: usize) -> usize {
        match self {
            Self::Beside => head_dim,
            Self::KeyPrefix(dim) => dim,
        }
    }
}

/// Shape of one layer's KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Number of key heads, equal to the number of value heads.
    pub num_key_value_heads: usize,
    /// Number of elements of a key.
    pub head_dim: usize,
    /// Storage of values.
    pub values: KvValues,
    /// Element type.
    pub dtype: KvDtype,
    /// Maximum number of pages in the pool.
    pub pages: usize,
}

impl KvShape {
    /// Returns the shape for a layer, or `None` if it has no KV cache.
    pub fn of_layer(layer: &LayerConfig, dtype: KvDtype, pages: usize) -> Option<Self> {
        let (num_key_value_heads, head_dim, values) = match &layer.mixer {
            TokenMixer::Attention(attention) => {
                (attention.num_key_value_heads, attention.head_dim, KvValues::Beside)
            }
            TokenMixer::Latent(latent) => {
                (1, latent.key_dim(), KvValues::KeyPrefix(latent.kv_lora_rank))
            }
            TokenMixer::DeltaNet(_) | TokenMixer::ShortConv(_) | TokenMixer::Mamba2(_) => {
                return None;
            }
        };
        Some(Self { num_key_value_heads, head_dim, values, dtype, pages })
    }

    /// Returns the size in bytes of one page over all layers.
    pub fn model_page_bytes(config: &ModelConfig, dtype: KvDtype) -> usize {
        let layers = config.layers.iter();
        layers
            .filter_map(|layer| Self::of_layer(layer, dtype, 1))
            .map(|shape| shape.page_bytes())
            .sum()
    }

    /// Returns the size in bytes of one page in one layer: keys and values of [`PAGE_POSITIONS`] positions.
    pub fn page_bytes(&self) -> usize {
        let (elements, scales) = (self.head_dim * self.dtype.bytes(), 2 * self.dtype.scale_bytes());
        let position = match self.values {
            KvValues::Beside => 2 * elements + scales,
            KvValues::KeyPrefix(_) => elements + scales,
        };
        PAGE_POSITIONS * self.num_key_value_heads * position
    }
}

/// Returns the number of pages for a number of positions.
pub fn pages_for(positions: usize) -> usize {
    positions.div_ceil(PAGE_POSITIONS)
}

/// Reference counts of the pages of a pool, with a prefix cache of pages.
#[derive(Debug)]
pub struct PageAllocator {
    places: KeyedPlaces,
}

impl PageAllocator {
    /// Creates an allocator of empty pages.
    pub fn new(pages: u32) -> Self {
        Self { places: KeyedPlaces::new(pages) }
    }

    /// Returns the number of available pages: empty ones, and idle ones, which only the prefix cache holds.
    pub fn free_pages(&self) -> usize {
        self.places.free()
    }

    /// Returns the number of idle pages. They are part of [`Self::free_pages`] and can be found until they
    /// are taken.
    pub fn idle_pages(&self) -> usize {
        self.places.idle()
    }

    /// Returns the total number of pages.
    pub fn pages(&self) -> usize {
        self.places.places()
    }

    /// Takes an empty page. If there is none, evicts the page that has been idle for longest.
    ///
    /// # Errors
    /// [`EngineError::OutOfPages`] if no page is available.
    pub fn allocate(&mut self) -> Result<PageId, EngineError> {
        let out_of_pages = EngineError::OutOfPages { pages: self.pages() };
        self.places.take().map(PageId).ok_or(out_of_pages)
    }

    /// Adds a holder to a page that is in use or was found in the cache.
    pub fn retain(&mut self, page: PageId) {
        self.places.retain(page.0);
    }

    /// Removes a holder; the last one frees the page.
    pub fn release(&mut self, page: PageId) {
        self.places.release(page.0);
    }

    /// Returns the number of holders of a page, including the prefix cache.
    pub fn references(&self, page: PageId) -> u32 {
        self.places.holders(page.0)
    }

    /// Caches a completely computed page under a key. Returns false if the key is taken.
    pub fn keep(&mut self, page: PageId, key: PrefixKey) -> bool {
        self.places.keep(page.0, key)
    }

    /// Returns the page cached under a key. It may be evicted at any time until it is retained.
    pub fn find(&self, key: &PrefixKey) -> Option<PageId> {
        self.places.find(key).map(PageId)
    }

    /// Returns [`Self::find`] in a form that reveals whether the page stayed cached between two calls.
    pub fn find_kept(&self, key: &PrefixKey) -> Option<KeptPlace<PageId>> {
        self.places.find_kept(key).map(|kept| kept.map(PageId))
    }

    /// Removes a page from the cache; its holders keep it.
    pub fn forget(&mut self, page: PageId) {
        self.places.forget(page.0);
    }
}

/// A required copy of a shared page before it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// Shared page to copy.
    pub source: PageId,
    /// New page in the table.
    pub destination: PageId,
}

/// Page table of one sequence. Position `p` is in page `p / PAGE_POSITIONS`.
///
/// A table does not know its allocator: call [`PageTable::clear`] before dropping it.
#[derive(Debug, Default)]
pub struct PageTable {
    pages: Vec<PageId>,
    length: usize,
}

impl PageTable {
    /// Returns the pages in order of positions.
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }

    /// Returns the number of positions in use.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Allocates space for `positions` more and counts them as used. If a copy is returned, it must be made
    /// in the pool before the new positions are written.
    ///
    /// # Errors
    /// [`EngineError::OutOfPages`] if pages are missing; the table is unchanged.
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
            // If no page is left for a copy, the page is removed from the cache instead.
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
        // A page without used positions need not be copied.
        Ok(copy.filter(|_| !(self.length - positions).is_multiple_of(PAGE_POSITIONS)))
    }

    /// Removes all positions from `length` on and releases the pages that become empty.
    pub fn truncate(&mut self, length: usize, allocator: &mut PageAllocator) {
        self.length = self.length.min(length);
        // Last pages first, since they are useless without those before them.
        for page in self.pages.drain(pages_for(self.length).min(self.pages.len())..).rev() {
            allocator.release(page);
        }
    }

    /// Replaces all but the first `whole` pages with cached pages and continues after them. All positions of
    /// these pages count as used.
    pub fn adopt(&mut self, whole: usize, found: &[PageId], allocator: &mut PageAllocator) {
        for &page in found {
            allocator.retain(page);
        }
        self.truncate(whole * PAGE_POSITIONS, allocator);
        self.pages.extend_from_slice(found);
        self.length = self.pages.len() * PAGE_POSITIONS;
    }

    /// Replaces a page with another of the same contents.
    pub fn replace(&mut self, index: usize, page: PageId, allocator: &mut PageAllocator) {
        if let Some(own) = self.pages.get_mut(index).filter(|own| **own != page) {
            allocator.retain(page);
            allocator.release(std::mem::replace(own, page));
        }
    }

    /// Releases all pages.
    pub fn clear(&mut self, allocator: &mut PageAllocator) {
        self.truncate(0, allocator);
    }

    /// Creates a second table of the same positions; pages are shared until one of the two writes.
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
