//! Layout of a KV page in device memory.
//!
//! A page contains its heads in order, each with transposed keys followed by values. A word is four bytes:
//! one f32, two f16 or four integers that are consecutive elements of a head.
//!
//! ```text
//! keys     [head_dim / per word, 64]      values   [64, head_dim / per word]
//! scales of integers, after all heads     [heads, keys and values, 64]
//! ```
//!
//! If values are a prefix of keys, the page contains only keys. The scales of the elements after the prefix
//! come first, then the scales of the prefix.

use bytemuck::{Pod, Zeroable};
use nestling_core::EngineError;
use nestling_core::kv_cache::{KvDtype, KvShape, KvValues, PAGE_POSITIONS};

use crate::storage::word;

/// Offsets and strides in a page, in 4-byte words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLayout {
    /// Words of a page.
    pub page_words: usize,
    /// Distance between two heads.
    pub head_words: usize,
    /// Offset of the values in a head.
    pub value_first: usize,
    /// Distance between two positions of the values, and between two words of a value.
    pub value_strides: [usize; 2],
    /// Words of a key that use the scale of values.
    pub prefix_words: usize,
    /// Offset of the scales.
    pub scale_first: usize,
}

/// Offsets and strides in a page as kernel arguments, in 4-byte words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct PageWords {
    /// Distance between two heads.
    pub head_words: u32,
    /// Offset of the values in a head.
    pub value_first: u32,
    /// Distance between two positions of the values.
    pub value_position: u32,
    /// Distance between two words of a value.
    pub value_word: u32,
    /// Words of a key that use the scale of values.
    pub prefix_words: u32,
    /// Offset of the scales.
    pub scale_first: u32,
}

fn per_word(dtype: KvDtype) -> usize {
    4 / dtype.bytes()
}

impl PageLayout {
    /// Returns the layout of a shape that passed [`PageLayout::check`].
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

    /// Returns the layout as kernel arguments.
    ///
    /// # Errors
    /// Fails with [`EngineError::Limit`] if an offset exceeds 32 bits.
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

    /// Checks that keys and values consist of whole words.
    ///
    /// # Errors
    /// Returns an error if the elements of a head are not a multiple of the elements of a word.
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
