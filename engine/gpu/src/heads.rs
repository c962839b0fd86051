//! The heads of attention as sizes.

use nestling_core::backend::{AttentionHeads, Backend};
use nestling_core::kv_cache::{KvShape, KvValues};

/// The heads of an attention layer, as sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadCounts {
    /// Query heads.
    pub queries: usize,
    /// Key heads.
    pub keys: usize,
    /// Elements of a head.
    pub dim: usize,
}

impl HeadCounts {
    /// Those of a layer.
    pub fn of<B: Backend>(heads: &AttentionHeads<B>) -> Self {
        Self {
            queries: heads.num_attention_heads,
            keys: heads.num_key_value_heads,
            dim: heads.head_dim,
        }
    }

    /// Query heads in rows of so many columns that are going to be stored: all, or none.
    pub fn stored_queries(&self, pages: &KvShape, cols: usize) -> usize {
        let stored = match pages.values {
            KvValues::Beside => 2 * self.keys * self.dim,
            KvValues::KeyPrefix(_) => self.keys * self.dim,
        };
        if cols == stored { 0 } else { self.queries }
    }
}
