//! The CPU as a backend: buffers, matrices and pages in host memory, threads and kernels.

use std::convert::Infallible;
use std::sync::Arc;

use nestling_formats::Level;
use nestling_formats::nested::{InputTransform, Layout, NestedCodec};

use super::aligned::AlignedFloats;
use super::encoder::CpuEncoder;
use super::encoder::attention::AttentionScratch;
use super::encoder::delta_net::DeltaScratch;
use super::encoder::feed_forward::{Inner, Use};
use super::encoder::products::{Packed, ProductScratch};
use super::kernels::Kernels;
use super::nested::CodecTables;
use super::pages::CpuPool;
use super::rows::QuantizedRows;
use super::states::CpuStates;
use crate::backend::{Backend, BackendLimits, Routing};
use crate::error::EngineError;
use crate::kv_cache::{KvShape, PageId};
use crate::recurrent::{StateId, StateShape};
use crate::threads::ThreadPool;
use crate::weights::{ActivationMode, MatrixWeights};

/// The CPU with its threads and the kernels that it runs.
#[derive(Debug)]
pub struct Cpu {
    pub(super) team: Team,
    /// Lookup tables of the codecs seen so far; matrices that share a codec share its tables.
    codecs: Vec<(Arc<NestedCodec>, Arc<CodecTables>)>,
    pub(super) scratch: Scratch,
}

/// Threads and kernels: what products need of the CPU.
#[derive(Clone, Debug)]
pub(super) struct Team {
    pub pool: Arc<ThreadPool>,
    pub kernels: &'static Kernels,
}

/// Memory that operations reuse: after the first steps, none allocates.
#[derive(Default)]
pub(super) struct Scratch {
    pub work: Work,
    pub attention: AttentionScratch,
    pub delta_net: DeltaScratch,
    /// The rows of every expert, and their places in the output.
    pub expert_rows: [Vec<u32>; 2],
    pub uses: Vec<Use<'static>>,
    /// The router's.
    pub logits: CpuBuffer,
    pub choice: Vec<f32>,
    pub chosen: Vec<(u32, f32)>,
    pub ids: Vec<u32>,
    pub weights: Vec<f32>,
}

/// Memory of products and feed-forward parts.
#[derive(Default)]
pub(super) struct Work {
    /// The input of a product.
    pub x: QuantizedRows,
    /// The input of a feed-forward part's second product.
    pub inner: QuantizedRows,
    /// Heads that are multiplied with float activations.
    pub heads: Vec<f32>,
    pub inners: Vec<Inner<'static>>,
    pub products: ProductScratch,
    /// Rows of a feed-forward part's first products.
    pub packed: Packed,
    /// Rows of one level, in the input and in the output.
    pub level_rows: [Vec<u32>; 2],
    /// 0, 1, 2, …
    pub all: Vec<u32>,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scratch")
    }
}

impl Cpu {
    /// A CPU that works with `threads` threads and the best kernels that it has.
    pub fn new(threads: usize) -> Self {
        Self::with(Arc::new(ThreadPool::new(threads)), Kernels::detect())
    }

    /// A CPU with given threads, which several may share, and kernels.
    pub fn with(pool: Arc<ThreadPool>, kernels: &'static Kernels) -> Self {
        Self { team: Team { pool, kernels }, codecs: Vec::new(), scratch: Scratch::default() }
    }

    fn tables(&mut self, codec: &Arc<NestedCodec>) -> Arc<CodecTables> {
        // A layer's matrices come one after another, so a known codec is found near the end.
        let known = self.codecs.iter().rev().find(|(known, _)| Arc::ptr_eq(known, codec));
        let known = known.or_else(|| self.codecs.iter().find(|(known, _)| **known == **codec));
        if let Some((_, tables)) = known {
            return Arc::clone(tables);
        }
        let tables = Arc::new(CodecTables::new(codec));
        self.codecs.push((Arc::clone(codec), Arc::clone(&tables)));
        tables
    }
}

/// Activations, `[rows, cols]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuBuffer {
    pub(super) cols: usize,
    pub(super) values: AlignedFloats,
}

impl CpuBuffer {
    pub(super) fn new(rows: usize, cols: usize) -> Self {
        Self { cols, values: AlignedFloats::zeroed(rows * cols) }
    }

    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    pub(crate) fn row_count(&self) -> usize {
        self.values.len().checked_div(self.cols).unwrap_or(0)
    }

    /// One row; empty for a row that there is not.
    pub(crate) fn row(&self, row: usize) -> &[f32] {
        self.values.get(row * self.cols..(row + 1) * self.cols).unwrap_or_default()
    }

    /// Sets the number of rows; what they hold is unspecified.
    pub(super) fn resize(&mut self, rows: usize) {
        self.values.resize(rows * self.cols);
    }
}

/// Weights with the way to multiply them.
#[derive(Clone, Debug)]
pub struct CpuMatrix {
    pub(super) weights: MatrixWeights,
    pub(super) activations: ActivationMode,
    pub(super) tables: Option<Arc<CodecTables>>,
}

impl CpuMatrix {
    pub(crate) fn rows(&self) -> usize {
        self.weights.rows()
    }

    pub(crate) fn cols(&self) -> usize {
        self.weights.cols()
    }

    /// Whether its inputs are rotated before the product.
    pub(super) fn is_rotated(&self) -> bool {
        self.weights.inputs() == InputTransform::Hadamard
    }

    /// Whether activations are quantized for products with it.
    pub(super) fn takes_int8(&self) -> bool {
        self.activations == ActivationMode::Int8 && matches!(self.weights, MatrixWeights::Nested(_))
    }

    /// Whether products with it go tile by tile in the kernels.
    pub(super) fn is_tiled(&self) -> bool {
        match &self.weights {
            MatrixWeights::Nested(matrix) => matrix.layout() == Layout::Tile16,
            MatrixWeights::Float(_) => false,
        }
    }

    /// One row of weights as floats, `[cols]`.
    pub(super) fn read_row(
        &self,
        level: Level,
        row: usize,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        match &self.weights {
            MatrixWeights::Float(matrix) => matrix.read_row(row, out),
            MatrixWeights::Nested(matrix) => {
                matrix.view()?.dequantize_row(matrix.prefix(level)?, row, out)?;
            }
        }
        Ok(())
    }
}

impl Backend for Cpu {
    type Buffer = CpuBuffer;
    type Routing = Routing;
    type Floats = Vec<f32>;
    type Matrix = CpuMatrix;
    type KvPool = CpuPool;
    type StatePool = CpuStates;
    type ExpertTable = Infallible;
    type ExpertSlots = Infallible;
    type Encoder<'a> = CpuEncoder<'a>;

    const PAGE_KIND: u8 = 0;

    fn name(&self) -> String {
        format!("CPU, {}, {} threads", self.team.kernels.name(), self.team.pool.threads())
    }

    fn limits(&self) -> BackendLimits {
        BackendLimits {
            num_experts_max: usize::MAX,
            num_experts_per_tok_max: usize::MAX,
            head_dim_max: usize::MAX,
            rows_max: usize::MAX,
        }
    }

    fn buffer(&mut self, rows_max: usize, cols: usize) -> Result<CpuBuffer, EngineError> {
        // The room is taken when rows first come.
        let _ = rows_max;
        Ok(CpuBuffer::new(0, cols))
    }

    fn routing(&mut self, _rows: usize, per_token: usize) -> Result<Routing, EngineError> {
        Ok(Routing { num_experts_per_tok: per_token, ..Routing::default() })
    }

    fn upload_floats(&mut self, values: &[f32]) -> Result<Vec<f32>, EngineError> {
        Ok(values.to_vec())
    }

    fn upload_matrix(
        &mut self,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<CpuMatrix, EngineError> {
        let tables = match weights {
            MatrixWeights::Nested(matrix) => Some(self.tables(matrix.codec())),
            MatrixWeights::Float(_) => None,
        };
        Ok(CpuMatrix { weights: weights.clone(), activations, tables })
    }

    fn matrix_bytes(matrix: &CpuMatrix, level: Level) -> u64 {
        matrix.weights.read_bytes(level)
    }

    fn matrix_prefix_bytes(matrix: &CpuMatrix, level: Level) -> u64 {
        matrix.weights.prefix_bytes(level)
    }

    fn kv_pool(&mut self, shape: &KvShape) -> Result<CpuPool, EngineError> {
        Ok(CpuPool::new(*shape))
    }

    fn copy_page(
        &mut self,
        pool: &mut CpuPool,
        source: PageId,
        destination: PageId,
    ) -> Result<(), EngineError> {
        pool.copy(source, destination)
    }

    fn read_page(
        &mut self,
        pool: &CpuPool,
        page: PageId,
        out: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        pool.read(page, out)
    }

    fn write_page(
        &mut self,
        pool: &mut CpuPool,
        page: PageId,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        pool.write(page, bytes)
    }

    fn state_pool(&mut self, shape: &StateShape) -> Result<CpuStates, EngineError> {
        Ok(CpuStates::new(*shape))
    }

    fn read_state(
        &mut self,
        pool: &CpuStates,
        state: StateId,
        out: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        pool.read(state, out)
    }

    fn write_state(
        &mut self,
        pool: &mut CpuStates,
        state: StateId,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        pool.write(state, bytes)
    }

    fn encoder(&mut self) -> CpuEncoder<'_> {
        CpuEncoder { cpu: self }
    }
}
