//! Pages of keys and values.

use nestling_core::EngineError;
use nestling_core::kv_cache::{KvShape, PageId};
use nestling_gpu::PageLayout;

use crate::device::{Memory, size_of};
use crate::error::WgpuError;
use crate::memory::SharedGpu;
use crate::recorder::{Binding, Recorder};

/// Buffers that the pages of one layer lie in: what a shader sees at once.
pub(crate) const CHUNKS: usize = 4;

/// The pages of one layer, in at most four buffers, allocated when first written.
pub struct WgpuPages {
    gpu: SharedGpu,
    pub(crate) shape: KvShape,
    chunks: [Option<Memory>; CHUNKS],
    /// Pages of a chunk.
    pub(crate) chunk_pages: usize,
    written: Vec<bool>, // [pages]
    /// In place of chunks that are not there.
    empty: Memory,
}

impl WgpuPages {
    pub(crate) fn new(gpu: &SharedGpu, shape: KvShape) -> Result<Self, EngineError> {
        PageLayout::check(&shape)?;
        let chunk_pages = chunk_pages(&shape);
        let (bytes, limit) = (chunk_pages * shape.page_bytes(), gpu.binding_bytes_max());
        if bytes as u64 > limit {
            let what = "bytes of a quarter of a layer's keys and values";
            return Err(WgpuError::Limit { what, limit, found: bytes as u64 }.into());
        }
        let empty = gpu.buffer("no pages", 16)?;
        let written = vec![false; shape.pages];
        let gpu = SharedGpu::clone(gpu);
        Ok(Self { gpu, shape, chunks: Default::default(), chunk_pages, written, empty })
    }

    fn missing(&self, page: PageId) -> EngineError {
        let expected = format!("a written page of {}", self.shape.pages);
        EngineError::mismatch("key/value page", expected, page.0)
    }

    /// # Errors
    /// A page that was not written.
    pub(crate) fn check(&self, page: PageId) -> Result<(), EngineError> {
        match self.written.get(page.0 as usize) {
            Some(true) => Ok(()),
            _ => Err(self.missing(page)),
        }
    }

    /// Makes a page ready to be written.
    ///
    /// # Errors
    /// A page that the pool does not have; a device whose memory is full.
    pub(crate) fn prepare(&mut self, page: PageId) -> Result<(), EngineError> {
        let index = page.0 as usize;
        if index >= self.shape.pages {
            return Err(self.missing(page));
        }
        let chunk = &mut self.chunks[index / self.chunk_pages];
        if chunk.is_none() {
            let bytes = self.chunk_pages * self.shape.page_bytes();
            *chunk = Some(self.gpu.buffer("keys and values", bytes as u64)?);
        }
        self.written[index] = true;
        Ok(())
    }

    /// The buffers, for a shader that reads any page.
    pub(crate) fn bindings(&self) -> [Binding; CHUNKS] {
        self.chunks.each_ref().map(|chunk| Binding::from(chunk.as_ref().unwrap_or(&self.empty)))
    }

    /// The buffer that a page lies in, and its place among the pages there.
    pub(crate) fn chunk_of(&self, page: PageId) -> (usize, usize) {
        (page.0 as usize / self.chunk_pages, page.0 as usize % self.chunk_pages)
    }

    /// One buffer, for a shader that writes pages in it.
    pub(crate) fn chunk(&self, chunk: usize) -> Binding {
        Binding::from(self.chunks.get(chunk).and_then(Option::as_ref).unwrap_or(&self.empty))
    }

    /// Where a page lies: its buffer, and its first byte.
    fn place(&self, page: PageId) -> Result<(&wgpu::Buffer, u64), EngineError> {
        self.check(page)?;
        let index = page.0 as usize;
        let chunk = self.chunks[index / self.chunk_pages].as_ref();
        let offset = (index % self.chunk_pages) * self.shape.page_bytes();
        Ok((chunk.ok_or_else(|| self.missing(page))?, offset as u64))
    }

    pub(crate) fn copy(
        &mut self,
        recorder: &mut Recorder,
        source: PageId,
        destination: PageId,
    ) -> Result<(), EngineError> {
        self.check(source)?;
        self.prepare(destination)?;
        if source == destination {
            return Ok(());
        }
        let bytes = self.shape.page_bytes() as u64;
        let (from, to) = (self.place(source)?, self.place(destination)?);
        if from.0 == to.0 {
            // A copy within one buffer goes by way of another.
            let between = self.gpu.buffer("a page", bytes)?;
            recorder.copy(from, (&between, 0), bytes);
            recorder.copy((&between, 0), to, bytes);
        } else {
            recorder.copy(from, to, bytes);
        }
        Ok(recorder.submit()?)
    }

    pub(crate) fn read(
        &self,
        recorder: &mut Recorder,
        page: PageId,
        out: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        let (buffer, offset) = self.place(page)?;
        let part = (buffer, offset, self.shape.page_bytes() as u64);
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
        self.prepare(page)?;
        recorder.submit()?;
        let (buffer, offset) = self.place(page)?;
        self.gpu.write(buffer, offset, bytes);
        Ok(recorder.submit()?)
    }
}

fn chunk_pages(shape: &KvShape) -> usize {
    shape.pages.div_ceil(CHUNKS).max(1)
}

/// Bytes of all pages, in whole chunks.
pub(crate) fn pool_bytes(shape: &KvShape) -> u64 {
    let chunk_pages = chunk_pages(shape);
    let chunk = size_of((chunk_pages * shape.page_bytes()) as u64);
    shape.pages.div_ceil(chunk_pages) as u64 * chunk + size_of(0)
}
