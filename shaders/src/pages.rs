//! Pages of keys and values.
//!
//! A page holds its heads one after another, each with its keys transposed, then its values. Four
//! bytes are a word: one f32, two f16 or four integers that follow each other in a head.
//!
//! ```text
//! keys     [head_dim / per word, 64]      values   [64, head_dim / per word]
//! scales of integers, behind all heads    [heads, keys and values, 64]
//! ```
//!
//! Where values are the first elements of keys, there are only keys, and the scales are those of what
//! follows the values, then those of the values.

use nestling_engine::EngineError;
use nestling_engine::kv_cache::{KvDtype, KvShape, KvValues, PAGE_POSITIONS, PageId};

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
        check_words(&shape)?;
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

/// Elements in one word.
pub(crate) fn per_word(dtype: KvDtype) -> usize {
    4 / dtype.bytes()
}

/// # Errors
/// Heads whose parts are no whole words.
fn check_words(shape: &KvShape) -> Result<(), EngineError> {
    let per_word = per_word(shape.dtype);
    let value_dim = shape.values.dim(shape.head_dim);
    if shape.head_dim.is_multiple_of(per_word) && value_dim.is_multiple_of(per_word) {
        return Ok(());
    }
    let expected = format!("a multiple of {per_word} for this type of keys and values");
    Err(EngineError::mismatch("elements of a head", expected, shape.head_dim))
}

/// Where things lie in a page, in words.
pub(crate) struct PageLayout {
    pub page_words: usize,
    /// Words from one head to the next.
    pub head_words: usize,
    /// First word of a head's values.
    pub value_first: usize,
    /// Words from one position to the next in values, and from one word of a value to the next.
    pub value_strides: [usize; 2],
    /// Words of a key that have the scale of values.
    pub prefix_words: usize,
    /// First word of the scales.
    pub scale_first: usize,
}

impl PageLayout {
    pub fn of(shape: &KvShape) -> Self {
        let words = shape.head_dim / per_word(shape.dtype);
        let key_words = PAGE_POSITIONS * words;
        let (head_words, value_first, value_strides, prefix_words) = match shape.values {
            KvValues::Beside => (2 * key_words, key_words, [words, 1], 0),
            KvValues::KeyPrefix(dim) => {
                (key_words, 0, [1, PAGE_POSITIONS], dim / per_word(shape.dtype))
            }
        };
        Self {
            page_words: shape.page_bytes() / 4,
            head_words,
            value_first,
            value_strides,
            prefix_words,
            scale_first: shape.num_key_value_heads * head_words,
        }
    }
}
