//! Pages of keys and values.

use std::sync::Arc;

use nestling_core::EngineError;
use nestling_core::kv_cache::{KvShape, PageId};
use nestling_gpu::PageLayout;

use crate::driver::{Address, DeviceMemory, Driver};
use crate::recorder::Recorder;

/// Pages that are allocated at once.
const CHUNK_PAGES: usize = 64;

/// The pages of one layer, allocated when first written.
pub struct CudaPages {
    driver: Arc<Driver>,
    pub(crate) shape: KvShape,
    chunks: Vec<Option<DeviceMemory>>,
    written: Vec<bool>, // [pages]
}

impl CudaPages {
    pub(crate) fn new(driver: &Arc<Driver>, shape: KvShape) -> Result<Self, EngineError> {
        PageLayout::check(&shape)?;
        let chunks = (0..shape.pages.div_ceil(CHUNK_PAGES)).map(|_| None).collect();
        let written = vec![false; shape.pages];
        Ok(Self { driver: Arc::clone(driver), shape, chunks, written })
    }

    fn missing(&self, page: PageId) -> EngineError {
        let expected = format!("a written page of {}", self.shape.pages);
        EngineError::mismatch("key/value page", expected, page.0)
    }

    /// Where a page that was written lies.
    ///
    /// # Errors
    /// A page that was not written.
    pub(crate) fn get(&self, page: PageId) -> Result<Address, EngineError> {
        let index = page.0 as usize;
        let chunk = self.chunks.get(index / CHUNK_PAGES).and_then(Option::as_ref);
        match (chunk, self.written.get(index)) {
            (Some(chunk), Some(true)) => {
                let offset = (index % CHUNK_PAGES) * self.shape.page_bytes();
                Ok(chunk.address() + offset as u64)
            }
            _ => Err(self.missing(page)),
        }
    }

    /// Where a page lies that is to be written.
    ///
    /// # Errors
    /// A page that the pool does not have; a device whose memory is full.
    pub(crate) fn prepare(&mut self, page: PageId) -> Result<Address, EngineError> {
        let index = page.0 as usize;
        if index >= self.shape.pages {
            return Err(self.missing(page));
        }
        let chunk = index / CHUNK_PAGES;
        if self.chunks[chunk].is_none() {
            let pages = CHUNK_PAGES.min(self.shape.pages - chunk * CHUNK_PAGES);
            let bytes = (pages * self.shape.page_bytes()) as u64;
            self.chunks[chunk] = Some(self.driver.allocate("keys and values", bytes)?);
        }
        self.written[index] = true;
        self.get(page)
    }

    pub(crate) fn copy(
        &mut self,
        recorder: &mut Recorder,
        source: PageId,
        destination: PageId,
    ) -> Result<(), EngineError> {
        let from = self.get(source)?;
        let to = self.prepare(destination)?;
        if from != to {
            recorder.copy(from, to, self.shape.page_bytes() as u64)?;
        }
        Ok(recorder.submit()?)
    }

    pub(crate) fn read(
        &self,
        recorder: &mut Recorder,
        page: PageId,
        out: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        let part = (self.get(page)?, self.shape.page_bytes());
        Ok(recorder.read(&[part], |bytes| out.extend_from_slice(bytes))?)
    }

    pub(crate) fn write(
        &mut self,
        recorder: &mut Recorder,
        page: PageId,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        let expected = self.shape.page_bytes();
        if bytes.len() != expected {
            return Err(EngineError::mismatch("bytes of a page", expected, bytes.len()));
        }
        let address = self.prepare(page)?;
        recorder.write(bytes, address)?;
        Ok(recorder.submit()?)
    }
}
