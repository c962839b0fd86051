//! KV pages of one layer.

use nestling_core::EngineError;
use nestling_core::kv_cache::{KvShape, PageId};

use crate::allocation::Allocation;
use crate::page_layout::PageLayout;
use crate::storage::Storage;

/// KV pages of one layer. Pages are grouped in chunks; a chunk is allocated when one of its pages is first
/// written.
pub struct GpuPages<S: Storage> {
    /// Number and sizes of the pages.
    pub shape: KvShape,
    /// Pages of a chunk.
    pub chunk_pages: usize,
    chunks: Vec<Option<S::Memory>>,
    written: Vec<bool>, // [pages]
}

/// Location of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPage {
    /// Index of the chunk.
    pub chunk: usize,
    /// Index of the page in the chunk.
    pub page: usize,
}

impl<S: Storage> GpuPages<S> {
    /// Creates a pool without allocating memory.
    ///
    /// # Errors
    /// Returns an error if kernels do not support the shape, or if a chunk exceeds the largest allocation.
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

    /// Returns the location of a page.
    pub fn chunk_page(&self, page: PageId) -> ChunkPage {
        let index = page.0 as usize;
        ChunkPage { chunk: index / self.chunk_pages, page: index % self.chunk_pages }
    }

    /// Returns a chunk, or `None` if it is not allocated.
    pub fn chunk(&self, chunk: usize) -> Option<S::Binding> {
        self.chunks.get(chunk).and_then(Option::as_ref).map(Allocation::binding)
    }

    /// Returns a page that was written.
    ///
    /// # Errors
    /// Returns an error if the page was not written.
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

    /// Returns the memory of a page for writing, allocating its chunk if necessary.
    ///
    /// # Errors
    /// Returns an error if the page is out of range or the device is out of memory.
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
