//! What a device is asked to compute: one kernel each, or the few that a product or attention takes.
//!
//! Sizes were checked against each other and fit the words that kernels count in.

use std::ops::Range;

use nestling_core::backend::{AttentionHeads, Backend, DeltaNet, Write};
use nestling_core::batch::{Run, StepRows};
use nestling_formats::Level;
use nestling_import::Activation;

use crate::expert_table::GpuExpertTable;
use crate::memory::{GpuBuffer, GpuFloats, GpuRouting, Quantized};
use crate::page_layout::PageWords;
use crate::pages::GpuPages;
use crate::product_form::{ProductForm, ProductKind};
use crate::row_pairs::RowPair;
use crate::sizes::{AttendSizes, RopeSizes, RouteSizes, StoreSizes};
use crate::states::GpuStates;
use crate::storage::Storage;

/// One operation of a step.
pub enum Operation<'a, D: Storage + Backend> {
    /// Every element, by itself.
    Scalar(Scalar<D::Binding>),
    /// `out *= sigmoid(gate)`.
    Gate(Gate<D::Binding>),
    /// `out[t] += sigmoid(gate[t]) * x[t]`.
    AddGated(AddGated<D::Binding>),
    /// `out[i] = x[indices[i]]`.
    GatherRows(GatherRows<D::Binding>),
    /// Weighted sums of what experts gave.
    ExpertsSum(ExpertsSum<D::Binding>),
    /// The largest of parts of rows.
    Argmax(Argmax<D::Binding>),
    /// The largest of rows, of their parts.
    ArgmaxMerge(ArgmaxMerge<D::Binding>),
    /// RMSNorm of whole rows.
    RmsNorm(RmsNorm<D::Binding>),
    /// RMSNorm of parts of rows, in place.
    NormParts(NormParts<D::Binding>),
    /// Norms and rotates heads, in place.
    Rope(Rope<D::Binding>),
    /// Stores keys and values in their pages.
    StoreKeys(StoreKeys<'a, D>),
    /// Attention over pages.
    Attend(Attend<'a, D>),
    /// The experts of every row, from logits.
    Route(Route<D::Binding>),
    /// Rows of the embedding.
    Embed(Embed<'a, D>),
    /// Activations in int8.
    Quantize(Quantize<D::Binding>),
    /// Gates and ups, joined.
    Gated(Gated<D::Binding>),
    /// Products with matrices.
    Products(Products<'a, D>),
    /// What follows the inputs of heads, to where it follows their products.
    HeadsRest(HeadsRest<D::Binding>),
    /// A gated DeltaNet layer.
    DeltaNet(DeltaNetRuns<'a, D>),
    /// Products with experts that kernels found by themselves.
    FoundProducts(FoundProducts<'a, D>),
}

/// What is done with an element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScalarKind {
    /// `x *= factor`
    Scale(f32),
    /// `x = cap * tanh(x / cap)`
    Softcap(f32),
    /// `x = 0`
    Clear,
}

/// Every element, by itself.
pub struct Scalar<B> {
    /// What is done.
    pub kind: ScalarKind,
    /// The elements.
    pub x: B,
    /// How many.
    pub count: u32,
}

/// `out *= sigmoid(gate)`.
pub struct Gate<B> {
    /// The gates.
    pub gate: B,
    /// What is gated.
    pub out: B,
    /// Elements of each.
    pub count: u32,
}

/// `out[t] += sigmoid(gate[t]) * x[t]`.
pub struct AddGated<B> {
    /// `[rows, 1]`
    pub gate: B,
    /// `[rows, cols]`
    pub x: B,
    /// `[rows, cols]`
    pub out: B,
    /// Rows of each.
    pub rows: u32,
    /// Columns of a sum.
    pub cols: u32,
}

/// `out[i] = x[indices[i]]`.
pub struct GatherRows<B> {
    /// The rows that are gathered from.
    pub x: B,
    /// `[rows]`
    pub indices: B,
    /// `[rows, cols]`
    pub out: B,
    /// Rows that are gathered.
    pub rows: u32,
    /// Columns of a row.
    pub cols: u32,
}

/// `out[t] += Σ weights[t, rank] * expert_rows[t * per_token + rank]`.
pub struct ExpertsSum<B> {
    /// `[rows, per_token]`
    pub weights: B,
    /// `[rows * per_token, cols]`
    pub expert_rows: B,
    /// `[rows, cols]`
    pub out: B,
    /// Rows of the sum.
    pub rows: u32,
    /// Columns of a row.
    pub cols: u32,
    /// Experts of a row.
    pub per_token: u32,
}

/// The largest of parts of rows: its order, and its column.
pub struct Argmax<B> {
    /// `[rows, cols]`
    pub x: B,
    /// `[rows, parts]`
    pub orders: B,
    /// `[rows, parts]`
    pub columns: B,
    /// Rows.
    pub rows: u32,
    /// Columns of a row.
    pub cols: u32,
    /// Columns of a row that are compared; the others must only be finite.
    pub among: u32,
    /// Parts of a row.
    pub parts: u32,
}

/// The largest of rows, of their parts.
pub struct ArgmaxMerge<B> {
    /// `[rows, parts]`
    pub orders: B,
    /// `[rows, parts]`
    pub columns: B,
    /// `[rows]`
    pub out: B,
    /// Rows.
    pub rows: u32,
    /// Parts of a row.
    pub parts: u32,
}

/// `x / sqrt(mean(x²) + eps) * weight`, row by row.
pub struct RmsNorm<B> {
    /// `[rows, cols]`
    pub x: B,
    /// `[cols]`
    pub weight: B,
    /// `[rows, cols]`
    pub out: B,
    /// Where the rows go in int8, too.
    pub int8: Option<Quantized<B>>,
    /// Rows.
    pub rows: u32,
    /// Columns of a row.
    pub cols: u32,
    /// What is added to the mean.
    pub eps: f32,
    /// How rows are written.
    pub write: Write,
}

/// RMSNorm of parts of rows, in place. Parts lie side by side.
pub struct NormParts<B> {
    /// `[length]`
    pub weight: B,
    /// The rows.
    pub x: B,
    /// Parts of all rows together.
    pub count: u32,
    /// Parts of a row.
    pub parts: u32,
    /// Elements from one row to the next.
    pub stride: u32,
    /// Column of the first part.
    pub first: u32,
    /// Elements of a part.
    pub length: u32,
    /// What is added to the mean.
    pub eps: f32,
}

/// The norm of one head.
pub struct NormWeight<B> {
    /// `[length]`
    pub binding: B,
    /// Its elements.
    pub length: u32,
}

/// Norms and rotates the first heads of every row, in place: queries, then keys.
pub struct Rope<B> {
    /// `[rows, stride]`
    pub x: B,
    /// Cosines, then sines: `[rows, rope_dims]`.
    pub angles: B,
    /// Of a query.
    pub query_norm: Option<NormWeight<B>>,
    /// Of a key.
    pub key_norm: Option<NormWeight<B>>,
    /// Rows.
    pub rows: u32,
    /// Their heads.
    pub sizes: RopeSizes,
    /// Whether pairs lie side by side.
    pub is_adjacent: bool,
    /// What is added to the mean of a norm.
    pub eps: f32,
}

/// Stores keys and values in their pages, which are prepared.
pub struct StoreKeys<'a, D: Storage + Backend> {
    /// The rows of the step.
    pub rows: &'a StepRows,
    /// Keys and values, `[rows, stride]`.
    pub x: &'a GpuBuffer<D>,
    /// Their sizes.
    pub sizes: StoreSizes,
    /// Where they go.
    pub pages: &'a GpuPages<D>,
    /// How pages lie.
    pub words: PageWords,
}

/// Causal attention of every row over its window.
pub struct Attend<'a, D: Storage + Backend> {
    /// Heads, window and sinks.
    pub heads: &'a AttentionHeads<D>,
    /// The rows of the step.
    pub rows: &'a StepRows,
    /// Queries, `[rows, heads * head_dim or more]`.
    pub queries: &'a GpuBuffer<D>,
    /// Keys and values.
    pub pages: &'a GpuPages<D>,
    /// `[rows, heads * value_dim]`
    pub out: &'a GpuBuffer<D>,
    /// Their sizes.
    pub sizes: AttendSizes,
    /// How pages lie.
    pub words: PageWords,
}

/// The experts of every row and their weights, from logits.
pub struct Route<B> {
    /// `[rows, experts]`
    pub logits: B,
    /// `[experts]`, each where there is one.
    pub logit_bias: Option<B>,
    /// Added to scores before experts are chosen.
    pub selection_bias: Option<B>,
    /// What the weight of each expert is multiplied with.
    pub expert_scale: Option<B>,
    /// `[rows, per_token]`
    pub ids: B,
    /// `[rows, per_token]`
    pub weights: B,
    /// The rule.
    pub sizes: RouteSizes,
}

/// `out[t] = table[tokens[t]]`, at the row's dense level.
pub struct Embed<'a, D: Storage + Backend> {
    /// The table.
    pub table: &'a D::Matrix,
    /// Tokens and levels, all of which the table has.
    pub rows: &'a StepRows,
    /// `[rows, cols]`
    pub out: &'a GpuBuffer<D>,
}

/// Activations in int8, each head a row of its own.
pub struct Quantize<B> {
    /// `[rows, stride]`
    pub x: B,
    /// Where they go.
    pub out: Quantized<B>,
    /// Rows.
    pub rows: u32,
    /// The first elements of each head, which are quantized.
    pub cols: u32,
    /// Heads of a row.
    pub parts: u32,
    /// Elements from one head to the next.
    pub part_stride: u32,
    /// Elements from one row to the next.
    pub stride: u32,
    /// Quantization groups of all rows.
    pub groups: usize,
}

/// How gates and ups are joined, and how down takes them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Joint {
    /// What joins them.
    pub activation: Activation,
    /// What down computes with.
    pub kind: ProductKind,
    /// Whether down takes rotated inputs.
    pub rotated: bool,
}

impl Joint {
    /// The activation, its alpha and its limit, as kernels take them.
    pub fn words(self) -> (u32, f32, f32) {
        match self.activation {
            Activation::Silu => (0, 0.0, 0.0),
            Activation::ClampedSwiglu { alpha, limit } => (1, alpha, limit),
            Activation::GeluTanh => (2, 0.0, 0.0),
        }
    }
}

/// Where joined gates and ups go.
pub enum GatedOutput<B> {
    /// In int8.
    Int8(Quantized<B>),
    /// As they are.
    Floats(B),
}

/// `activation(gate, up)` of rows that hold a gate and an up side by side.
pub struct Gated<B> {
    /// How they are joined.
    pub joint: Joint,
    /// `[rows, 2 * cols]`
    pub gate_up: B,
    /// `[rows, cols]`
    pub out: GatedOutput<B>,
    /// Rows.
    pub rows: u32,
    /// Columns of a gate.
    pub cols: u32,
    /// Quantization groups of all rows.
    pub groups: usize,
}

/// Products of rows with matrices.
pub struct Products<'a, D: Storage + Backend> {
    /// What is multiplied with what.
    pub jobs: &'a [Job<'a, D>],
    /// Rows of the input and of the output.
    pub pairs: &'a [RowPair],
    /// What is read.
    pub input: &'a Input<D::Binding>,
    /// Where products go.
    pub output: &'a Output<D::Binding>,
}

/// One matrix at one level, for some pairs of rows.
pub struct Job<'a, D: Storage + Backend> {
    /// The matrix.
    pub matrix: &'a D::Matrix,
    /// What is added to its products.
    pub bias: Option<&'a GpuFloats<D>>,
    /// What it is computed with.
    pub kind: ProductKind,
    /// Its level, which it holds.
    pub level: Level,
    /// Its rows that are wanted.
    pub rows: Range<usize>,
    /// Column of the output that the first one goes to.
    pub out_col: usize,
    /// Its pairs.
    pub pairs: Range<usize>,
}

/// What products read.
#[derive(Clone)]
pub struct Input<B> {
    /// For jobs with [`ProductKind::Int8`].
    pub quantized: Option<Quantized<B>>,
    /// For the others.
    pub floats: Option<B>,
    /// Elements of a row.
    pub cols: usize,
    /// Elements from one row to the next.
    pub stride: usize,
}

/// Where products go: rows of `cols`.
#[derive(Clone)]
pub struct Output<B> {
    /// The first row.
    pub values: B,
    /// Elements of a row.
    pub cols: usize,
    /// How they are written.
    pub write: Write,
}

/// Gates and ups.
pub enum GatesAndUps<'a, D: Storage + Backend> {
    /// A gate, its up, and so on.
    Jobs {
        /// What is multiplied with what.
        jobs: &'a [Job<'a, D>],
        /// Rows of the input and of the output.
        pairs: &'a [RowPair],
    },
    /// Those that kernels found.
    Found {
        /// What is multiplied with what.
        blocks: &'a D::FoundBlocks,
        /// What their matrices have in common.
        form: ProductForm,
    },
}

/// Gates and ups that are joined as they are computed.
pub struct GatedProducts<'a, D: Storage + Backend> {
    /// What is multiplied with what.
    pub products: GatesAndUps<'a, D>,
    /// What is read.
    pub input: &'a Input<D::Binding>,
    /// How gates and ups are joined.
    pub joint: Joint,
    /// Rows of the output.
    pub rows: usize,
    /// Columns of the output.
    pub cols: usize,
}

/// What follows the inputs of heads, to where it follows their products.
pub struct HeadsRest<B> {
    /// `[heads, inputs + rest]`
    pub x: B,
    /// `[heads, outputs + rest]`
    pub out: B,
    /// Heads of all rows.
    pub heads: u32,
    /// Elements that are multiplied.
    pub inputs: u32,
    /// Products.
    pub outputs: u32,
    /// Elements that follow.
    pub rest: u32,
}

/// Runs of rows that pass the recurrent states of a gated DeltaNet layer.
pub struct DeltaNetRuns<'a, D: Storage + Backend> {
    /// The layer.
    pub net: &'a DeltaNet<D>,
    /// Runs, each short enough for a launch; those of a sequence in order.
    pub runs: &'a [Run],
    /// `[rows, channels + value_dim + 2 * num_value_heads]`
    pub projected: &'a GpuBuffer<D>,
    /// Queries, keys and values after the convolution, `[rows, channels]`.
    pub mixed: D::Binding,
    /// The states, of which those that runs begin with were written.
    pub states: &'a mut GpuStates<D>,
    /// `[rows, value_dim]`
    pub out: &'a GpuBuffer<D>,
}

/// Uses of experts that kernels note for the host.
#[derive(Clone, Debug)]
pub struct NotedCall<B> {
    /// Where the uses of all calls are noted.
    pub notes: B,
    /// The first of this call.
    pub first: u32,
    /// Number of this call, from 1 on: what the miss flag becomes when it lacks an expert.
    pub call: u32,
}

/// Has kernels make blocks of products with the experts of a layer that a routing names.
pub struct FindExperts<'a, D: Storage + Backend> {
    /// The experts.
    pub table: &'a GpuExpertTable<D>,
    /// The level of every row.
    pub levels: &'a [Level], // [rows]
    /// What the router chose.
    pub routing: &'a GpuRouting<D>,
    /// Uses of experts: rows times experts of each.
    pub uses: usize,
    /// Where they are noted.
    pub noted: NotedCall<D::Binding>,
}

/// Blocks of gates and ups, and those of downs.
pub struct FoundExperts<F> {
    /// A gate, its up, and so on.
    pub inner: F,
    /// Downs.
    pub outer: F,
}

/// Products of blocks that kernels made, with matrices alike.
pub struct FoundProducts<'a, D: Storage + Backend> {
    /// The experts.
    pub table: &'a GpuExpertTable<D>,
    /// What is multiplied with what.
    pub blocks: &'a D::FoundBlocks,
    /// What their matrices have in common.
    pub form: ProductForm,
    /// What is read.
    pub input: &'a Input<D::Binding>,
    /// Where products go.
    pub output: &'a Output<D::Binding>,
}
