//! KV pages of one layer.

use nestling_core::EngineError;
use nestling_core::kv_cache::{KvShape, PageId};

use crate::allocation::Allocation;
use crate::page_layout::PageLayout;
use crate::storage::Storage;

/// The pages of one layer in chunks of several, each allocated when one of its pages is first written.
pub struct GpuPages<S: Storage> {
    /// How many pages there are, and their sizes.
    pub shape: KvShape,
    /// Pages of a chunk.
    pub chunk_pages: usize,
    chunks: Vec<Option<S::Memory>>,
    written: Vec<bool>, // [pages]
}

/// Pages of a chunk, and where a page is among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPage {
    /// Number of the chunk.
    pub chunk: usize,
    /// Number of the page in it.
    pub page: usize,
}

impl<S: Storage> GpuPages<S> {
    /// A pool without any memory yet.
    ///
    /// # Errors
    /// A shape that kernels do not read, or of which a chunk is larger than they see at once.
    pub fn new(storage: &S, shape: KvShape) -> Result<Self, EngineError> {
        PageLayout::check(&shape)?;
        let chunk_pages = S::chunk_pages(&shape).max(1);
        let limit = storage.allocation_bytes_max();
        let found = chunk_pages as u64 * shape.page_bytes() as u64;
        if found > limit {
            let what = "bytes of a layer's keys and values that are allocated at once";
            return Err(EngineError::Limit { what, limit, found });
        }
        let chunks = (0..shape.pages.div_ceil(chunk_pages)).map(|_| None).collect();
        Ok(Self { shape, chunk_pages, chunks, written: vec![false; shape.pages] })
    }

    fn missing(&self, page: PageId) -> EngineError {
        let expected = format!("a written page of {}", self.shape.pages);
        EngineError::mismatch("key/value page", expected, page.0)
    }

    /// Where a page lies among the chunks.
    pub fn chunk_page(&self, page: PageId) -> ChunkPage {
        let index = page.0 as usize;
        ChunkPage { chunk: index / self.chunk_pages, page: index % self.chunk_pages }
    }

    /// A chunk that has memory.
    pub fn chunk(&self, chunk: usize) -> Option<S::Binding> {
        self.chunks.get(chunk).and_then(Option::as_ref).map(Allocation::binding)
    }

    /// A page that was written.
    ///
    /// # Errors
    /// A page that was not.
    pub fn get(&self, page: PageId) -> Result<S::Binding, EngineError> {
        let at = self.chunk_page(page);
        let chunk = self.chunks.get(at.chunk).and_then(Option::as_ref);
        match (chunk, self.written.get(page.0 as usize)) {
            (Some(chunk), Some(true)) => {
                let bytes = self.shape.page_bytes();
                Ok(chunk.range((at.page * bytes) as u64, bytes as u64))
            }
            _ => Err(self.missing(page)),
        }
    }

    /// The memory of a page that is to be written.
    ///
    /// # Errors
    /// A page that the pool does not have; a device whose memory is full.
    pub fn prepare(&mut self, storage: &mut S, page: PageId) -> Result<S::Binding, EngineError> {
        let index = page.0 as usize;
        if index >= self.shape.pages {
            return Err(self.missing(page));
        }
        let ChunkPage { chunk, .. } = self.chunk_page(page);
        if self.chunks[chunk].is_none() {
            let pages = self.chunk_pages.min(self.shape.pages - chunk * self.chunk_pages);
            let bytes = (pages * self.shape.page_bytes()) as u64;
            self.chunks[chunk] = Some(storage.allocate("keys and values", bytes)?);
        }
        self.written[index] = true;
        self.get(page)
    }
}
