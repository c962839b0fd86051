//! What a device must be able to do: hold weights and pages ([`Backend`]), compute ([`Encoder`]).
//!
//! Operations are coarse, so that a backend is free to fuse inside them and to record instead of
//! run. `cpu/reference.rs` defines the exact result of each. Operations that fill a buffer set
//! its row count to that of their input.

mod parts;

use std::ops::AddAssign;
use std::sync::Arc;

use nestling_formats::Level;

use crate::batch::StepRows;
use crate::error::EngineError;
use crate::kv_cache::{KvShape, PageId};
use crate::recurrent::{StateId, StateShape};
use crate::weights::{ActivationMode, MatrixWeights};

pub use parts::{
    AttentionHeads, DeltaNet, ExpertUse, FeedForward, HeadMatrices, HeadNorm, Linear, PinnedExpert,
    Router, Routing,
};

/// What a backend can hold; checked when a model is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendLimits {
    /// Most experts of one layer.
    pub num_experts_max: usize,
    /// Most experts that one token may use.
    pub num_experts_per_tok_max: usize,
    /// Largest size of a head.
    pub head_dim_max: usize,
    /// Most rows of one step.
    pub rows_max: usize,
}

/// What was given to a device to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendCounters {
    /// Shaders or kernels that were started.
    pub dispatches: u64,
    /// Submissions of work to the device's queue.
    pub submissions: u64,
    /// Bytes of weights that were copied to the device.
    pub upload_bytes: u64,
    /// Times that the host waited for the device.
    pub waits: u64,
}

impl AddAssign for BackendCounters {
    fn add_assign(&mut self, other: Self) {
        self.dispatches += other.dispatches;
        self.submissions += other.submissions;
        self.upload_bytes += other.upload_bytes;
        self.waits += other.waits;
    }
}

/// A device: allocates, uploads, moves pages. An error leaves it usable.
pub trait Backend: Send + Sized + 'static {
    /// Activations, `[rows, cols]` of f32; the row count varies from step to step.
    type Buffer: Send + Sync;
    /// The router's choice for every row, `[T, K]`; may stay on the device.
    type Routing: Send + Sync;
    /// A float vector: norm weights, biases.
    type Floats: Send + Sync;
    /// A weight matrix, at all levels that its planes allow.
    type Matrix: Send + Sync;
    /// Pages of keys and values of one layer.
    type KvPool: Send + Sync;
    /// Recurrent states of one layer.
    type StatePool: Send + Sync;
    /// The experts of one layer, for a device that finds them by itself; see
    /// [`Encoder::routed_experts`].
    type ExpertTable: Send + Sync;
    /// Computes one step.
    type Encoder<'a>: Encoder<Self>
    where
        Self: 'a;

    /// Tells the contents of its pages and states from those of other kinds of backends: part of a
    /// model's identity, so that snapshots are only read where they mean the same.
    const PAGE_KIND: u8;

    /// What the device is, for people.
    fn name(&self) -> String;

    /// What it can hold.
    fn limits(&self) -> BackendLimits;

    /// Room for activations of up to `rows_max` rows.
    ///
    /// # Errors
    /// A backend whose memory is full.
    fn buffer(&mut self, rows_max: usize, cols: usize) -> Result<Self::Buffer, EngineError>;

    /// Room for the routing of up to `rows_max` rows.
    ///
    /// # Errors
    /// A backend whose memory is full.
    fn routing(
        &mut self,
        rows_max: usize,
        num_experts_per_tok: usize,
    ) -> Result<Self::Routing, EngineError>;

    /// Makes a vector available.
    ///
    /// # Errors
    /// A backend whose memory is full.
    fn upload_floats(&mut self, values: &[f32]) -> Result<Self::Floats, EngineError>;

    /// Makes a matrix available; a CPU uses the bytes where they lie.
    ///
    /// # Errors
    /// A backend whose memory is full, or weights in a form that it does not take.
    fn upload_matrix(
        &mut self,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<Self::Matrix, EngineError>;

    /// Bytes that a product with the matrix reads of it at a level.
    fn matrix_bytes(matrix: &Self::Matrix, level: Level) -> u64;

    /// Bytes of the planes that a level uses, as a store holds them.
    fn matrix_prefix_bytes(matrix: &Self::Matrix, level: Level) -> u64;

    /// The experts of a layer, all of them, for [`Encoder::routed_experts`]. None where the host has
    /// to know the routing: it is the host that computes, or the experts are in a form for it.
    ///
    /// # Errors
    /// A backend whose memory is full.
    fn expert_table(
        &mut self,
        experts: &[Arc<FeedForward<Self>>],
    ) -> Result<Option<Self::ExpertTable>, EngineError> {
        let _ = experts;
        Ok(None)
    }

    /// Room for the keys and values of one layer. Pages may be allocated when first written.
    ///
    /// # Errors
    /// A backend whose memory is full.
    fn kv_pool(&mut self, shape: &KvShape) -> Result<Self::KvPool, EngineError>;

    /// Copies a page of one layer.
    ///
    /// # Errors
    /// Pages that the pool does not have.
    fn copy_page(
        &mut self,
        pool: &mut Self::KvPool,
        source: PageId,
        destination: PageId,
    ) -> Result<(), EngineError>;

    /// Appends the contents of a page to `out`, [`KvShape::page_bytes`] bytes in the backend's
    /// own layout: for snapshots.
    ///
    /// # Errors
    /// A page that the pool does not have.
    fn read_page(
        &mut self,
        pool: &Self::KvPool,
        page: PageId,
        out: &mut Vec<u8>,
    ) -> Result<(), EngineError>;

    /// Writes what [`Backend::read_page`] gave.
    ///
    /// # Errors
    /// A page that the pool does not have, or bytes of another length.
    fn write_page(
        &mut self,
        pool: &mut Self::KvPool,
        page: PageId,
        bytes: &[u8],
    ) -> Result<(), EngineError>;

    /// Room for the recurrent states of one layer. States may be allocated when first written.
    ///
    /// # Errors
    /// A backend whose memory is full.
    fn state_pool(&mut self, shape: &StateShape) -> Result<Self::StatePool, EngineError>;

    /// Appends the contents of a state to `out`, [`StateShape::state_bytes`] bytes in the backend's
    /// own layout: for snapshots.
    ///
    /// # Errors
    /// A state that was not written.
    fn read_state(
        &mut self,
        pool: &Self::StatePool,
        state: StateId,
        out: &mut Vec<u8>,
    ) -> Result<(), EngineError>;

    /// Writes what [`Backend::read_state`] gave.
    ///
    /// # Errors
    /// A state that the pool does not have, or bytes of another length.
    fn write_state(
        &mut self,
        pool: &mut Self::StatePool,
        state: StateId,
        bytes: &[u8],
    ) -> Result<(), EngineError>;

    /// Starts a step.
    fn encoder(&mut self) -> Self::Encoder<'_>;

    /// What was given to a device since this was asked last; nothing where the host computes.
    fn take_counters(&mut self) -> BackendCounters {
        BackendCounters::default()
    }
}

/// Records, or runs, the operations of one step. T = rows, D = hidden size.
pub trait Encoder<B: Backend>: Send {
    /// `out[t] = table[tokens[t]]`, at the row's dense level.
    ///
    /// # Errors
    /// A token outside the table; a failed device.
    fn embed(
        &mut self,
        table: &B::Matrix,
        rows: &StepRows,
        out: &mut B::Buffer, // [T, D]
    ) -> Result<(), EngineError>;

    /// Copies values of the host, a whole number of rows of `out`.
    ///
    /// # Errors
    /// Values that do not fill rows; a failed device.
    fn write(&mut self, values: &[f32], out: &mut B::Buffer) -> Result<(), EngineError>;

    /// `out = x / sqrt(mean(x²) + eps) * weight`, row by row.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn rms_norm(
        &mut self,
        x: &B::Buffer,      // [T, D]
        weight: &B::Floats, // [D]
        eps: f32,
        out: &mut B::Buffer, // [T, D]
    ) -> Result<(), EngineError>;

    /// `out = W x + b`, the outputs of several matrices side by side; `levels` per row.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn matmul(
        &mut self,
        weights: &[Linear<B>], // N in all
        levels: &[Level],      // [T]
        x: &B::Buffer,         // [T, D]
        out: &mut B::Buffer,   // [T, N]
    ) -> Result<(), EngineError>;

    /// `out += W x + b`.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn matmul_add(
        &mut self,
        weights: &Linear<B>,
        levels: &[Level],    // [T]
        x: &B::Buffer,       // [T, D]
        out: &mut B::Buffer, // [T, N]
    ) -> Result<(), EngineError>;

    /// Multiplies the first K elements of every head with the head's own matrix; what follows them
    /// follows the products: `out[t, h] = [W_h x[t, h, ..K], x[t, h, K..]]`.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn matmul_heads(
        &mut self,
        weights: &HeadMatrices<B>, // [H * N, K]
        levels: &[Level],          // [T]
        x: &B::Buffer,             // [T, H * (K + R)]
        out: &mut B::Buffer,       // [T, H * (N + R)]
    ) -> Result<(), EngineError>;

    /// Norms and rotates queries and keys and norms values in place, then stores keys and values in
    /// their pages. The R elements of a head from `rope_first` on are rotated in pairs; the first R/2 columns
    /// of `rope` are the cosines and the others the sines of each row's position. There are no
    /// values where a key's first elements are its value ([`KvValues::KeyPrefix`]).
    ///
    /// [`KvValues::KeyPrefix`]: crate::kv_cache::KvValues::KeyPrefix
    ///
    /// # Errors
    /// Sizes that differ; a page that the pool does not have; a failed device.
    fn rope_store(
        &mut self,
        heads: &AttentionHeads<B>,
        rows: &StepRows,
        rope: &B::Buffer,    // [T, R]
        qkv: &mut B::Buffer, // [T, (H + 2 G) * head_dim], or without the queries or the values
        kv: &mut B::KvPool,
    ) -> Result<(), EngineError>;

    /// Norms and rotates queries in place, as [`Encoder::rope_store`] does.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn rope_queries(
        &mut self,
        heads: &AttentionHeads<B>,
        rows: &StepRows,
        rope: &B::Buffer,        // [T, R]
        queries: &mut B::Buffer, // [T, H * head_dim]
    ) -> Result<(), EngineError>;

    /// Causal attention of every row over its window of positions, its own the last, read from the
    /// pages.
    ///
    /// # Errors
    /// Sizes that differ; a page that the pool does not have; a failed device.
    fn attend(
        &mut self,
        heads: &AttentionHeads<B>,
        rows: &StepRows,
        qkv: &B::Buffer, // [T, H * head_dim or more], only queries are read
        kv: &B::KvPool,
        out: &mut B::Buffer, // [T, H * elements of a value]
    ) -> Result<(), EngineError>;

    /// A gated DeltaNet layer: rows of a sequence, which lie together, pass the convolution and the
    /// heads' states in order; what they give is normed and multiplied with `silu(gate)`. A row of
    /// `projected` holds queries, keys and values, gates, beta and alpha. States are read and written
    /// as `rows` says.
    ///
    /// # Errors
    /// Sizes that differ; states that do not fit the rows; a failed device.
    fn delta_net(
        &mut self,
        net: &DeltaNet<B>,
        rows: &StepRows,
        projected: &B::Buffer, // [T, channels + value_dim + 2 * num_value_heads]
        states: &mut B::StatePool,
        out: &mut B::Buffer, // [T, value_dim]
    ) -> Result<(), EngineError>;

    /// `out *= sigmoid(gate)`, element by element.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn gate(
        &mut self,
        gate: &B::Buffer,    // [T, N]
        out: &mut B::Buffer, // [T, N]
    ) -> Result<(), EngineError>;

    /// The K experts of every row and their weights, by the router's rule; of equal scores the lower
    /// expert wins.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn route(
        &mut self,
        router: &Router<B>,
        x: &B::Buffer,        // [T, D]
        out: &mut B::Routing, // [T, K]
    ) -> Result<(), EngineError>;

    /// The routing in host memory, in place of what `out` was: waits for the device.
    ///
    /// # Errors
    /// A failed device.
    fn read_routing_into(
        &mut self,
        routing: &B::Routing,
        out: &mut Routing,
    ) -> impl Future<Output = Result<(), EngineError>> + Send;

    /// [`Encoder::read_routing_into`] a new one.
    ///
    /// # Errors
    /// A failed device.
    fn read_routing(
        &mut self,
        routing: &B::Routing,
    ) -> impl Future<Output = Result<Routing, EngineError>> + Send {
        async {
            let mut out = Routing::default();
            self.read_routing_into(routing, &mut out).await?;
            Ok(out)
        }
    }

    /// Makes a matrix available that arrived during the step; a CPU uses the bytes where they lie.
    ///
    /// # Errors
    /// As [`Backend::upload_matrix`].
    fn bind_matrix(
        &mut self,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<B::Matrix, EngineError>;

    /// Makes floats available during a step, as [`Backend::upload_floats`].
    ///
    /// # Errors
    /// As [`Backend::upload_floats`].
    fn bind_floats(&mut self, values: &[f32]) -> Result<B::Floats, EngineError>;

    /// Starts the device on what was recorded, before the host waits for something else.
    ///
    /// # Errors
    /// A failed device.
    fn flush(&mut self) -> Result<(), EngineError>;

    /// `x *= factor`, element by element.
    ///
    /// # Errors
    /// A failed device.
    fn scale(&mut self, factor: f32, x: &mut B::Buffer) -> Result<(), EngineError>;

    /// `x = cap * tanh(x / cap)`, element by element.
    ///
    /// # Errors
    /// A failed device.
    fn softcap(&mut self, cap: f32, x: &mut B::Buffer) -> Result<(), EngineError>;

    /// `out` becomes so many rows of zeros.
    ///
    /// # Errors
    /// A failed device.
    fn clear(&mut self, rows: usize, out: &mut B::Buffer) -> Result<(), EngineError>;

    /// `out += x / sqrt(mean(x²) + eps) * weight`, row by row.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn rms_norm_add(
        &mut self,
        x: &B::Buffer,      // [T, D]
        weight: &B::Floats, // [D]
        eps: f32,
        out: &mut B::Buffer, // [T, D]
    ) -> Result<(), EngineError>;

    /// `out = down(activation(gate(x), up(x)))`.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn ffn(
        &mut self,
        weights: &FeedForward<B>,
        levels: &[Level],    // [T]
        x: &B::Buffer,       // [T, D]
        out: &mut B::Buffer, // [T, D]
    ) -> Result<(), EngineError>;

    /// `out[t] += sigmoid(gate[t]) * x[t]`.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn add_gated(
        &mut self,
        gate: &B::Buffer,    // [T, 1]
        x: &B::Buffer,       // [T, D]
        out: &mut B::Buffer, // [T, D]
    ) -> Result<(), EngineError>;

    /// `out += down(activation(gate(x), up(x)))`.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn ffn_add(
        &mut self,
        weights: &FeedForward<B>,
        levels: &[Level],    // [T]
        x: &B::Buffer,       // [T, D]
        out: &mut B::Buffer, // [T, D]
    ) -> Result<(), EngineError>;

    /// `out[t * K + rank] = expert(x[t])` for every use of the experts given; other rows of `out`
    /// stay as they are. A layer's experts may come in several calls, in any order.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn experts(
        &mut self,
        experts: &[PinnedExpert<'_, B>],
        routing: &B::Routing, // [T, K]
        x: &B::Buffer,        // [T, D]
        out: &mut B::Buffer,  // [T * K, D]
    ) -> Result<(), EngineError>;

    /// [`Encoder::experts`] with those that the routing names, all of one layer: nobody waits for the
    /// routing. The next [`Encoder::read_into`] brings it along, for [`Encoder::take_routed`].
    ///
    /// # Errors
    /// Sizes that differ; a level that an expert of the table does not hold; a failed device.
    fn routed_experts(
        &mut self,
        table: &B::ExpertTable,
        levels: &[Level],                        // [T]
        (routing, x): (&B::Routing, &B::Buffer), // [T, K], [T, D]
        out: &mut B::Buffer,                     // [T * K, D]
    ) -> Result<(), EngineError> {
        let _ = (table, levels, routing, x, out);
        Err(EngineError::mismatch("experts of the routing", "a device that finds them", "a host"))
    }

    /// The experts that [`Encoder::routed_experts`] found, call after call, in place of what `out`
    /// held; once a buffer was read.
    fn take_routed(&mut self, out: &mut Vec<u32>) {
        out.clear();
    }

    /// `out[t] += Σ expert_weight · expert_rows[t * K + rank]`: for each row, a sum that starts at
    /// zero and gains `fma(weight, value, sum)` in ascending rank is added to `out`.
    ///
    /// # Errors
    /// Sizes that differ; a failed device.
    fn experts_sum(
        &mut self,
        routing: &B::Routing,    // [T, K]
        expert_rows: &B::Buffer, // [T * K, D]
        out: &mut B::Buffer,     // [T, D]
    ) -> Result<(), EngineError>;

    /// `out[i] = x[indices[i]]`.
    ///
    /// # Errors
    /// An index outside `x`; a failed device.
    fn gather_rows(
        &mut self,
        x: &B::Buffer,
        indices: &[u32],
        out: &mut B::Buffer,
    ) -> Result<(), EngineError>;

    /// Everything recorded is run, and the buffer's rows are copied to the host, in place of what
    /// `out` held.
    ///
    /// # Errors
    /// A failed device.
    fn read_into(
        &mut self,
        buffer: &B::Buffer,
        out: &mut Vec<f32>,
    ) -> impl Future<Output = Result<(), EngineError>> + Send;

    /// [`Encoder::read_into`] new memory.
    ///
    /// # Errors
    /// A failed device.
    fn read(
        &mut self,
        buffer: &B::Buffer,
    ) -> impl Future<Output = Result<Vec<f32>, EngineError>> + Send {
        async {
            let mut out = Vec::new();
            self.read_into(buffer, &mut out).await?;
            Ok(out)
        }
    }
}
