//! Operations that a device computes. Each takes one kernel; products and attention may take several.
//!
//! The encoder has checked that sizes match and fit the 32-bit words that kernels count in.

use std::ops::Range;

use nestling_core::backend::{AttentionHeads, Backend, DeltaNet, Mamba2, ShortConv, Write};
use nestling_core::batch::{Run, StepRows};
use nestling_formats::Level;
use nestling_import::{Activation, GateFunction};

use crate::expert_table::GpuExpertTable;
use crate::memory::{GpuBuffer, GpuFloats, GpuRouting, QuantizedActivations};
use crate::page_layout::PageWords;
use crate::pages::GpuPages;
use crate::product_form::{ProductForm, ProductKind};
use crate::row_pairs::RowPair;
use crate::sizes::{AttendSizes, RopeSizes, RouteSizes, StoreSizes};
use crate::states::GpuStates;
use crate::storage::Storage;

/// One operation of a step.
pub enum Operation<'a, D: Storage + Backend> {
    /// An elementwise operation with one operand.
    Scalar(Scalar<D::Binding>),
    /// Gating: `out *= function(gate)`.
    Gate(Gate<D::Binding>),
    /// Gated addition: `out[t] += sigmoid(gate[t]) * x[t]`.
    AddGated(AddGated<D::Binding>),
    /// Row gathering: `out[i] = x[indices[i]]`.
    GatherRows(GatherRows<D::Binding>),
    /// Weighted sums of expert outputs.
    ExpertsSum(ExpertsSum<D::Binding>),
    /// Argmax over parts of rows.
    Argmax(Argmax<D::Binding>),
    /// Argmax over rows, merged from the results of their parts.
    ArgmaxMerge(ArgmaxMerge<D::Binding>),
    /// RMSNorm of whole rows.
    RmsNorm(RmsNorm<D::Binding>),
    /// RMSNorm of parts of rows, in place.
    NormParts(NormParts<D::Binding>),
    /// Norm and rotary embedding of heads, in place.
    Rope(Rope<D::Binding>),
    /// Storing of keys and values in KV pages.
    StoreKeys(StoreKeys<'a, D>),
    /// Attention over KV pages.
    Attend(Attend<'a, D>),
    /// Selection of each row's experts from logits.
    Route(Route<D::Binding>),
    /// Embedding lookup.
    Embed(Embed<'a, D>),
    /// Quantization of activations to int8.
    Quantize(Quantize<D::Binding>),
    /// Activation that joins gates and ups.
    Gated(Gated<D::Binding>),
    /// Products with matrices.
    Products(Products<'a, D>),
    /// Copy of the elements after each head's inputs to the positions after its products.
    HeadsRest(HeadsRest<D::Binding>),
    /// A gated DeltaNet layer.
    DeltaNet(DeltaNetRuns<'a, D>),
    /// A gated short convolution.
    ShortConv(ShortConvRuns<'a, D>),
    /// A Mamba-2 layer.
    Mamba2(Mamba2Runs<'a, D>),
    /// Products with experts that kernels looked up on the device.
    FoundProducts(FoundProducts<'a, D>),
}

/// Kind of an elementwise operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScalarKind {
    /// `x *= factor`
    Scale(f32),
    /// `x = cap * tanh(x / cap)`
    Softcap(f32),
    /// `x = 0`
    Clear,
}

/// An elementwise operation with one operand.
pub struct Scalar<B> {
    /// Kind of operation.
    pub kind: ScalarKind,
    /// Elements, updated in place.
    pub x: B,
    /// Number of elements.
    pub count: u32,
}

/// `out *= function(gate)`.
pub struct Gate<B> {
    /// Function of the gates.
    pub function: GateFunction,
    /// The gates.
    pub gate: B,
    /// Gated elements, updated in place.
    pub out: B,
    /// Number of gated elements.
    pub count: u32,
    /// Number of adjacent elements that a gate multiplies; at least 1.
    pub width: u32,
}

/// `out[t] += sigmoid(gate[t]) * x[t]`.
pub struct AddGated<B> {
    /// `[rows, 1]`
    pub gate: B,
    /// `[rows, cols]`
    pub x: B,
    /// `[rows, cols]`
    pub out: B,
    /// Rows of each operand.
    pub rows: u32,
    /// Columns of `x` and `out`.
    pub cols: u32,
}

/// `out[i] = x[indices[i]]`.
pub struct GatherRows<B> {
    /// Source rows.
    pub x: B,
    /// `[rows]`
    pub indices: B,
    /// `[rows, cols]`
    pub out: B,
    /// Number of gathered rows.
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
    /// Number of rows of the sum.
    pub rows: u32,
    /// Columns of a row.
    pub cols: u32,
    /// Experts of a row.
    pub per_token: u32,
}

/// Argmax over parts of rows. The result is the maximum's order key and its column.
pub struct Argmax<B> {
    /// `[rows, cols]`
    pub x: B,
    /// `[rows, parts]`
    pub orders: B,
    /// `[rows, parts]`
    pub columns: B,
    /// Number of rows.
    pub rows: u32,
    /// Columns of a row.
    pub cols: u32,
    /// Number of columns compared. Other columns only need to be finite.
    pub among: u32,
    /// Parts of a row.
    pub parts: u32,
}

/// Argmax over rows, merged from the results of their parts.
pub struct ArgmaxMerge<B> {
    /// `[rows, parts]`
    pub orders: B,
    /// `[rows, parts]`
    pub columns: B,
    /// `[rows]`
    pub out: B,
    /// Number of rows.
    pub rows: u32,
    /// Parts of a row.
    pub parts: u32,
}

/// RMSNorm of rows: `x / sqrt(mean(x²) + eps) * weight`.
pub struct RmsNorm<B> {
    /// `[rows, cols]`
    pub x: B,
    /// `[cols]`
    pub weight: B,
    /// `[rows, cols]`
    pub out: B,
    /// Additional int8 output.
    pub int8: Option<QuantizedActivations<B>>,
    /// Number of rows.
    pub rows: u32,
    /// Columns of a row.
    pub cols: u32,
    /// Epsilon added to the mean square.
    pub eps: f32,
    /// Set or add.
    pub write: Write,
}

/// RMSNorm of adjacent parts of rows, in place.
pub struct NormParts<B> {
    /// `[length]`
    pub weight: B,
    /// Rows, updated in place.
    pub x: B,
    /// Number of parts of all rows.
    pub count: u32,
    /// Parts of a row.
    pub parts: u32,
    /// Distance between the starts of two rows, in elements.
    pub stride: u32,
    /// Column of the first part.
    pub first: u32,
    /// Elements of a part.
    pub length: u32,
    /// Epsilon added to the mean square.
    pub eps: f32,
}

/// Norm weight of one head.
pub struct NormWeight<B> {
    /// `[length]`
    pub binding: B,
    /// Number of elements.
    pub length: u32,
}

/// Norm and rotary embedding of the first heads of each row, in place: queries, then keys.
pub struct Rope<B> {
    /// `[rows, stride]`
    pub x: B,
    /// Cosines, then sines: `[rows, rope_dims]`.
    pub angles: B,
    /// Norm of query heads.
    pub query_norm: Option<NormWeight<B>>,
    /// Norm of key heads.
    pub key_norm: Option<NormWeight<B>>,
    /// Number of rows.
    pub rows: u32,
    /// Numbers and sizes of the heads.
    pub sizes: RopeSizes,
    /// True if rotated pairs are adjacent elements.
    pub is_adjacent: bool,
    /// For queries and for keys: true if the norm follows the rotation.
    pub late_norms: [bool; 2],
    /// Epsilon added to the mean square of a norm.
    pub eps: f32,
}

impl<B> Rope<B> {
    /// Returns `late_norms` as kernels read it: 1 for queries, plus 2 for keys.
    pub fn late_norm_bits(&self) -> u32 {
        let [queries, keys] = self.late_norms.map(u32::from);
        queries + 2 * keys
    }
}

/// Storing of keys and values in KV pages, whose memory must be allocated.
pub struct StoreKeys<'a, D: Storage + Backend> {
    /// Rows of the step.
    pub rows: &'a StepRows,
    /// Keys and values, `[rows, stride]`.
    pub x: &'a GpuBuffer<D>,
    /// Sizes of keys and values.
    pub sizes: StoreSizes,
    /// Destination pages.
    pub pages: &'a GpuPages<D>,
    /// Layout of a page.
    pub words: PageWords,
}

/// Causal attention of each row over its window.
pub struct Attend<'a, D: Storage + Backend> {
    /// Head sizes, window and sinks.
    pub heads: &'a AttentionHeads<D>,
    /// Rows of the step.
    pub rows: &'a StepRows,
    /// Queries, `[rows, cols]` with at least `heads * head_dim` columns.
    pub queries: &'a GpuBuffer<D>,
    /// KV pages.
    pub pages: &'a GpuPages<D>,
    /// `[rows, heads * value_dim]`
    pub out: &'a GpuBuffer<D>,
    /// Sizes of heads, values and window.
    pub sizes: AttendSizes,
    /// Layout of a page.
    pub words: PageWords,
}

/// Selection of each row's experts and their weights from logits.
pub struct Route<B> {
    /// `[rows, experts]`
    pub logits: B,
    /// Added to logits, `[experts]`.
    pub logit_bias: Option<B>,
    /// Added to scores before experts are selected, `[experts]`.
    pub selection_bias: Option<B>,
    /// Factor of each expert's weight, `[experts]`.
    pub expert_scale: Option<B>,
    /// Selected experts, `[rows, per_token]`.
    pub ids: B,
    /// Expert weights, `[rows, per_token]`.
    pub weights: B,
    /// Routing rule and sizes.
    pub sizes: RouteSizes,
}

/// Embedding lookup: `out[t] = table[tokens[t]]`, at the row's dense level.
pub struct Embed<'a, D: Storage + Backend> {
    /// Embedding table.
    pub table: &'a D::Matrix,
    /// Rows of the table.
    pub tokens: &'a [u32], // [T]
    /// Levels, checked to be present in the table.
    pub levels: &'a [Level], // [T]
    /// `[rows, cols]`
    pub out: &'a GpuBuffer<D>,
}

/// Quantization of activations to int8. The output has one row for each head.
pub struct Quantize<B> {
    /// `[rows, stride]`
    pub x: B,
    /// Quantized output.
    pub out: QuantizedActivations<B>,
    /// Number of rows.
    pub rows: u32,
    /// Number of elements quantized at the start of each head.
    pub cols: u32,
    /// Heads of a row.
    pub parts: u32,
    /// Distance between the starts of two heads, in elements.
    pub part_stride: u32,
    /// Distance between the starts of two rows, in elements.
    pub stride: u32,
    /// Number of quantization groups of all rows.
    pub groups: usize,
}

/// Activation that joins gates and ups, and the input format of the down products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Joint {
    /// Activation function.
    pub activation: Activation,
    /// Input format of the down products.
    pub kind: ProductKind,
    /// True if the down products take rotated inputs.
    pub rotated: bool,
}

impl Joint {
    /// Returns the activation's number, alpha and limit as kernel arguments.
    pub fn words(self) -> (u32, f32, f32) {
        match self.activation {
            Activation::Silu => (0, 0.0, 0.0),
            Activation::ClampedSwiglu { alpha, limit } => (1, alpha, limit),
            Activation::GeluTanh => (2, 0.0, 0.0),
            Activation::Relu2 => (3, 0.0, 0.0),
        }
    }
}

/// Output of joined gates and ups.
pub enum GatedOutput<B> {
    /// Output in int8.
    Int8(QuantizedActivations<B>),
    /// Output in f32.
    Floats(B),
}

/// Activation `activation(gate, up)` of rows that contain a gate followed by an up.
pub struct Gated<B> {
    /// Activation and output format.
    pub joint: Joint,
    /// `[rows, 2 * cols]`
    pub gate_up: B,
    /// `[rows, cols]`
    pub out: GatedOutput<B>,
    /// Number of rows.
    pub rows: u32,
    /// Columns of a gate.
    pub cols: u32,
    /// Number of quantization groups of all rows.
    pub groups: usize,
}

/// Products of rows with matrices.
pub struct Products<'a, D: Storage + Backend> {
    /// Matrices, levels and pairs to multiply.
    pub jobs: &'a [Job<'a, D>],
    /// Rows of the input and of the output.
    pub pairs: &'a [RowPair],
    /// Input activations.
    pub input: &'a Input<D::Binding>,
    /// Output rows.
    pub output: &'a Output<D::Binding>,
}

/// Products of one matrix at one level, for a range of row pairs.
pub struct Job<'a, D: Storage + Backend> {
    /// Weight matrix.
    pub matrix: &'a D::Matrix,
    /// Bias added to the products.
    pub bias: Option<&'a GpuFloats<D>>,
    /// Input format.
    pub kind: ProductKind,
    /// Level, which must be resident.
    pub level: Level,
    /// Range of matrix rows to compute.
    pub rows: Range<usize>,
    /// Output column of the first computed matrix row.
    pub out_col: usize,
    /// Range of row pairs.
    pub pairs: Range<usize>,
}

/// Input activations of products.
#[derive(Clone)]
pub struct Input<B> {
    /// Int8 activations, for jobs with [`ProductKind::Int8`].
    pub quantized: Option<QuantizedActivations<B>>,
    /// f32 activations, for other jobs.
    pub floats: Option<B>,
    /// Elements of a row.
    pub cols: usize,
    /// Distance between the starts of two rows, in elements.
    pub stride: usize,
}

/// Output rows of products, with `cols` elements each.
#[derive(Clone)]
pub struct Output<B> {
    /// Binding that starts at the first row.
    pub values: B,
    /// Elements of a row.
    pub cols: usize,
    /// Set or add.
    pub write: Write,
}

/// Gate and up products.
pub enum GatesAndUps<'a, D: Storage + Backend> {
    /// Jobs that alternate between a gate and its up.
    Jobs {
        /// Matrices, levels and pairs to multiply.
        jobs: &'a [Job<'a, D>],
        /// Rows of the input and of the output.
        pairs: &'a [RowPair],
    },
    /// Blocks that kernels built from a routing.
    Found {
        /// Blocks of products.
        blocks: &'a D::FoundBlocks,
        /// Common form of the matrices.
        form: ProductForm,
    },
}

/// Gate and up products fused with the activation that joins them.
pub struct GatedProducts<'a, D: Storage + Backend> {
    /// Products to compute.
    pub products: GatesAndUps<'a, D>,
    /// Input activations.
    pub input: &'a Input<D::Binding>,
    /// Activation and output format.
    pub joint: Joint,
    /// Number of output rows.
    pub rows: usize,
    /// Columns of the output.
    pub cols: usize,
}

/// Copy of the elements after each head's inputs to the positions after its products.
pub struct HeadsRest<B> {
    /// `[heads, inputs + rest]`
    pub x: B,
    /// `[heads, outputs + rest]`
    pub out: B,
    /// Number of heads of all rows.
    pub heads: u32,
    /// Number of multiplied elements of a head.
    pub inputs: u32,
    /// Number of products of a head.
    pub outputs: u32,
    /// Number of copied elements of a head.
    pub rest: u32,
}

/// Runs of rows that update the recurrent states of a gated DeltaNet layer.
pub struct DeltaNetRuns<'a, D: Storage + Backend> {
    /// The layer's parameters.
    pub net: &'a DeltaNet<D>,
    /// Runs, each short enough for one launch. Runs of a sequence are in order.
    pub runs: &'a [Run],
    /// `[rows, channels + value_dim + 2 * num_value_heads]`
    pub projected: &'a GpuBuffer<D>,
    /// Queries, keys and values after the convolution, `[rows, channels]`.
    pub mixed: D::Binding,
    /// Recurrent states. A run's initial state must have been written.
    pub states: &'a mut GpuStates<D>,
    /// `[rows, value_dim]`
    pub out: &'a GpuBuffer<D>,
}

/// Runs of rows that update the recurrent states of a gated short convolution.
pub struct ShortConvRuns<'a, D: Storage + Backend> {
    /// The layer's parameters.
    pub conv: &'a ShortConv<D>,
    /// Runs, each short enough for one launch. Runs of a sequence are in order.
    pub runs: &'a [Run],
    /// `[rows, 3 * channels]`
    pub projected: &'a GpuBuffer<D>,
    /// Recurrent states. A run's initial state must have been written.
    pub states: &'a mut GpuStates<D>,
    /// `[rows, channels]`
    pub out: &'a GpuBuffer<D>,
}

/// Runs of rows that update the recurrent states of a Mamba-2 layer.
pub struct Mamba2Runs<'a, D: Storage + Backend> {
    /// The layer's parameters.
    pub mamba2: &'a Mamba2<D>,
    /// Runs, each short enough for one launch. Runs of a sequence are in order.
    pub runs: &'a [Run],
    /// `[rows, inner + channels + num_heads]`
    pub projected: &'a GpuBuffer<D>,
    /// Inputs of the heads, B and C after the convolution, `[rows, channels]`.
    pub mixed: D::Binding,
    /// Recurrent states. A run's initial state must have been written.
    pub states: &'a mut GpuStates<D>,
    /// `[rows, inner]`
    pub out: &'a GpuBuffer<D>,
}

/// Expert uses of one call, which kernels note for the host.
#[derive(Clone, Debug)]
pub struct NotedCall<B> {
    /// Noted uses of all calls.
    pub notes: B,
    /// Index of this call's first use.
    pub first: u32,
    /// Number of this call, counted from 1. The miss flag takes this value if an expert is missing.
    pub call: u32,
}

/// Request to build blocks of products from a routing, on the device.
pub struct FindExperts<'a, D: Storage + Backend> {
    /// Table of the layer's experts.
    pub table: &'a GpuExpertTable<D>,
    /// Level of each row.
    pub levels: &'a [Level], // [rows]
    /// Experts that the router selected.
    pub routing: &'a GpuRouting<D>,
    /// Number of expert uses: rows times experts of a row.
    pub uses: usize,
    /// Memory for noting the uses.
    pub noted: NotedCall<D::Binding>,
}

/// Blocks of expert products, built on the device.
pub struct FoundExperts<F> {
    /// Blocks that alternate between a gate and its up.
    pub inner: F,
    /// Blocks of down products.
    pub outer: F,
}

/// Products of blocks that kernels built. All matrices have the same form.
pub struct FoundProducts<'a, D: Storage + Backend> {
    /// Table of the layer's experts.
    pub table: &'a GpuExpertTable<D>,
    /// Blocks of products.
    pub blocks: &'a D::FoundBlocks,
    /// Common form of the matrices.
    pub form: ProductForm,
    /// Input activations.
    pub input: &'a Input<D::Binding>,
    /// Output rows.
    pub output: &'a Output<D::Binding>,
}
