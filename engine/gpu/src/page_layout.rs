//! How a page of keys and values lies in memory of a device.
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

use bytemuck::{Pod, Zeroable};
use nestling_core::EngineError;
use nestling_core::kv_cache::{KvDtype, KvShape, KvValues, PAGE_POSITIONS};

use crate::storage::word;

/// Where things lie in a page, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLayout {
    /// Words of a page.
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

/// The same in the pages of one layer, as kernels take it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct PageWords {
    /// Words from one head to the next.
    pub head_words: u32,
    /// First word of a head's values.
    pub value_first: u32,
    /// Words from one position to the next in values.
    pub value_position: u32,
    /// Words from one word of a value to the next.
    pub value_word: u32,
    /// Words of a key that have the scale of values.
    pub prefix_words: u32,
    /// First word of the scales.
    pub scale_first: u32,
}

/// Elements in one word.
fn per_word(dtype: KvDtype) -> usize {
    4 / dtype.bytes()
}

impl PageLayout {
    /// That of pages whose heads were checked ([`PageLayout::check`]).
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

    /// What kernels take.
    ///
    /// # Errors
    /// [`EngineError::Limit`] for more words than kernels count.
    pub fn words(&self) -> Result<PageWords, EngineError> {
        let [value_position, value_word] = self.value_strides;
        Ok(PageWords {
            head_words: word("words of a head", self.head_words)?,
            value_first: word("words of keys", self.value_first)?,
            value_position: word("words of a value", value_position)?,
            value_word: word("words of a value", value_word)?,
            prefix_words: word("words of a value", self.prefix_words)?,
            scale_first: word("words of a page", self.scale_first)?,
        })
    }

    /// # Errors
    /// Heads whose parts are no whole words.
    pub fn check(shape: &KvShape) -> Result<(), EngineError> {
        let per_word = per_word(shape.dtype);
        let value_dim = shape.values.dim(shape.head_dim);
        if shape.head_dim.is_multiple_of(per_word) && value_dim.is_multiple_of(per_word) {
            return Ok(());
        }
        let expected = format!("a multiple of {per_word} for this type of keys and values");
        Err(EngineError::mismatch("elements of a head", expected, shape.head_dim))
    }
}
