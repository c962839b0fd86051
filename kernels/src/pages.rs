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

use std::sync::Arc;

use nestling_engine::EngineError;
use nestling_engine::kv_cache::{KvDtype, KvShape, KvValues, PAGE_POSITIONS, PageId};

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
        check_words(&shape)?;
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
            head_words,
            value_first,
            value_strides,
            prefix_words,
            scale_first: shape.num_key_value_heads * head_words,
        }
    }
}
