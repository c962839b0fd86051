//! The CPU device: threads, kernels and reusable memory.

use std::sync::Arc;

use nestling_formats::nested::Codec;

use super::encoder::inner::Inner;
use super::encoder::products::{PackedProduct, ProductScratch};
use super::encoder::scratch::{AttentionScratch, LeveledRows, RecurrentScratch};
use super::kernels::Kernels;
use super::matrix::{CpuBuffer, MatrixTables};
use super::rows::QuantizedRows;
use super::team::Team;
use crate::threads::ThreadPool;
use nestling_core::backend::{FeedForward, RankLink};
use nestling_core::error::EngineError;
use nestling_core::group::Group;

/// The CPU with its threads and its kernels.
#[derive(Debug)]
pub struct Cpu {
    pub(super) team: Team,
    /// Lookup tables of known codecs. Matrices that share a codec share its tables.
    codecs: Vec<(Codec, MatrixTables)>,
    pub(super) scratch: Scratch,
    /// Other ranks of the model, if any.
    pub(super) ranks: Option<Arc<RankLink>>,
}

/// Memory that operations reuse, so that they do not allocate after the first steps.
#[derive(Default)]
pub(super) struct Scratch {
    pub work: FeedForwardScratch,
    pub attention: AttentionScratch,
    pub delta_net: RecurrentScratch,
    /// Rows of each expert, and their places in the output.
    pub expert_rows: [Vec<u32>; 2],
    pub uses: Vec<LeveledRows<'static, FeedForward<Cpu>>>,
    /// Router logits.
    pub logits: CpuBuffer,
    pub choice: Vec<f32>,
    pub chosen: Vec<(u32, f32)>,
    pub ids: Vec<u32>,
    pub weights: Vec<f32>,
}

/// Memory of products and feed-forward parts.
#[derive(Default)]
pub(super) struct FeedForwardScratch {
    /// Quantized input of a product.
    pub x: QuantizedRows,
    /// Quantized input of a feed-forward part's second product.
    pub inner: QuantizedRows,
    /// Gate, and up, of a rank's part of a feed-forward part.
    pub halves: [CpuBuffer; 2],
    /// Inputs of heads that are multiplied with float activations.
    pub heads: Vec<f32>,
    pub inners: Vec<Inner<'static>>,
    pub products: ProductScratch,
    /// Packed rows of a feed-forward part's first products.
    pub packed: PackedProduct,
    /// Rows of one level, in the input and in the output.
    pub level_rows: [Vec<u32>; 2],
    /// Ascending numbers 0, 1, 2, …
    pub all: Vec<u32>,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scratch")
    }
}

impl Cpu {
    /// Creates a CPU with `threads` threads and the fastest kernels available.
    pub fn new(threads: usize) -> Self {
        Self::with(Arc::new(ThreadPool::new(threads)), Kernels::detect())
    }

    /// Creates a CPU with the given threads, which may be shared, and kernels.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use nestling_cpu::Cpu;
    /// use nestling_cpu::kernels::Kernels;
    /// use nestling_cpu::threads::ThreadPool;
    ///
    /// let pool = Arc::new(ThreadPool::new(2));
    /// let first = Cpu::with(Arc::clone(&pool), Kernels::detect());
    /// let second = Cpu::with(pool, Kernels::portable());
    /// ```
    pub fn with(pool: Arc<ThreadPool>, kernels: &'static Kernels) -> Self {
        let (team, scratch) = (Team { pool, kernels }, Scratch::default());
        Self { team, codecs: Vec::new(), scratch, ranks: None }
    }

    /// Makes the CPU a rank of a group: it holds a share of each model, and all ranks run the same steps.
    #[must_use]
    pub fn in_group(self, group: Arc<dyn Group>) -> Self {
        Self { ranks: Some(Arc::new(RankLink::new(group))), ..self }
    }

    pub(super) fn tables(&mut self, codec: &Codec) -> Result<MatrixTables, EngineError> {
        // A layer's matrices are uploaded consecutively, so that a known codec is found near the end.
        let known = self.codecs.iter().rev().find(|(known, _)| is_same(known, codec));
        let known = known.or_else(|| self.codecs.iter().find(|(known, _)| known == codec));
        if let Some((_, tables)) = known {
            return Ok(tables.clone());
        }
        let tables = MatrixTables::new(codec)?;
        self.codecs.push((codec.clone(), tables.clone()));
        Ok(tables)
    }
}

/// Returns whether two codecs are the same object in memory.
fn is_same(a: &Codec, b: &Codec) -> bool {
    match (a, b) {
        (Codec::Nested(a), Codec::Nested(b)) => Arc::ptr_eq(a, b),
        (Codec::Scaled(a), Codec::Scaled(b)) => Arc::ptr_eq(a, b),
        _ => false,
    }
}
