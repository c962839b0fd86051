//! Checks of attention heads against rows and pages.

use super::expect;
use nestling_core::EngineError;
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

    fn check_pages(&self, pages: &KvShape) -> Result<(), EngineError> {
        expect("key heads of the pages", pages.num_key_value_heads, self.keys)?;
        expect("elements of a stored head", pages.head_dim, self.dim)
    }

    /// Query heads in rows of so many columns that are going to be stored: all, or none.
    ///
    /// # Errors
    /// Sizes that do not fit.
    pub fn stored_queries(&self, pages: &KvShape, cols: usize) -> Result<usize, EngineError> {
        self.check_pages(pages)?;
        let stored = match pages.values {
            KvValues::Beside => 2 * self.keys * self.dim,
            KvValues::KeyPrefix(_) => self.keys * self.dim,
        };
        let queries = if cols == stored { 0 } else { self.queries };
        expect("columns of queries, keys and values", queries * self.dim + stored, cols)?;
        Ok(queries)
    }

    /// Where values begin in such rows, and how many parts with a norm of this length they are.
    ///
    /// # Errors
    /// Sizes that do not fit.
    pub fn value_parts(
        &self,
        (queries, cols): (usize, usize),
        norm: usize,
    ) -> Result<(usize, usize), EngineError> {
        let first = (queries + self.keys) * self.dim;
        expect("norm of values", 0, (cols - first) % norm.max(1))?;
        Ok((first, (cols - first) / norm.max(1)))
    }

    /// Checks queries of some rows and columns, what is attended, and how many sinks there are.
    ///
    /// # Errors
    /// Sizes that do not fit.
    pub fn check_attended(
        &self,
        pages: &KvShape,
        (rows, queries): (usize, (usize, usize)),
        (out_cols, sinks): (usize, Option<usize>),
    ) -> Result<(), EngineError> {
        let value_dim = pages.values.dim(self.dim);
        expect("columns of queries", 0, usize::from(queries.1 < self.queries * self.dim))?;
        expect("attended columns", self.queries * value_dim, out_cols)?;
        expect("rows of queries", rows, queries.0)?;
        expect(
            "query heads for each key head",
            0,
            self.queries.checked_rem(self.keys).unwrap_or(1),
        )?;
        expect("sinks", self.queries, sinks.unwrap_or(self.queries))?;
        self.check_pages(pages)
    }
}
