//! Numbers and sizes of attention heads.

use nestling_core::backend::{AttentionHeads, Backend};
use nestling_core::kv_cache::{KvShape, KvValues};

/// Numbers and size of the heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadCounts {
    /// Number of query heads.
    pub queries: usize,
    /// Number of key heads.
    pub keys: usize,
    /// Elements of a head.
    pub dim: usize,
}

impl HeadCounts {
    /// Returns the head counts of a layer.
    pub fn of<B: Backend>(heads: &AttentionHeads<B>) -> Self {
        Self {
            queries: heads.num_attention_heads,
            keys: heads.num_key_value_heads,
            dim: heads.head_dim,
        }
    }

    /// Returns the number of query heads in rows of `cols` columns that are about to be stored. Rows hold
    /// either all query heads or none.
    pub fn stored_queries(&self, pages: &KvShape, cols: usize) -> usize {
        let stored = match pages.values {
            KvValues::Beside => 2 * self.keys * self.dim,
            KvValues::KeyPrefix(_) => self.keys * self.dim,
        };
        if cols == stored { 0 } else { self.queries }
    }
}
