//! Operands of operations: weights, and choices of experts.

use std::sync::Arc;

use nestling_formats::nested::{InputTransform, Layout, PlaneForm};
use nestling_formats::{DType, Level};
use nestling_import::{
    Activation, DeltaNetConfig, Mamba2Config, RopePairs, RouterConfig, ShortConvConfig,
};
use serde::{Deserialize, Serialize};

use super::{Backend, HasShape, Shape};
use crate::weights::ActivationMode;

/// A matrix with its optional bias: `y = W x + b`. On a rank of several, these may be some rows of a larger one.
pub struct Linear<B: Backend> {
    /// Matrix, `[N, D]`.
    pub matrix: B::Matrix,
    /// Bias, `[N]`.
    pub bias: Option<B::Floats>,
    /// Position of the N outputs among those of the whole matrix.
    pub outputs: Outputs,
}

/// Position of a matrix's outputs among those of the matrix of which it holds rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outputs {
    /// First output.
    pub first: usize,
    /// Number of outputs of all ranks together.
    pub whole: usize,
}

impl<B: Backend> Linear<B> {
    /// Creates a whole matrix.
    pub fn new(matrix: B::Matrix, bias: Option<B::Floats>) -> Self {
        let outputs = Outputs { first: 0, whole: matrix.shape().rows };
        Self { matrix, bias, outputs }
    }

    /// Returns true if other ranks hold rows of the matrix.
    pub fn is_divided(&self) -> bool {
        self.matrix.shape().rows != self.outputs.whole
    }
}

/// A feed-forward part: `down(activation(gate(x), up(x)))`, or `down(activation(up(x)))` without a gate.
pub struct FeedForward<B: Backend> {
    /// Activation that combines gate and up.
    pub activation: Activation,
    /// Gate projection, `[I, D]`, if the activation has one.
    pub gate: Option<Linear<B>>,
    /// Up projection, `[I, D]`. A rank of several holds the same rows of gate and up.
    pub up: Linear<B>,
    /// Down projection, `[D, I]`.
    pub down: Linear<B>,
}

impl<B: Backend> FeedForward<B> {
    /// Returns the gate, or up for an activation without one, which then joins up with itself.
    pub fn gate_or_up(&self) -> &Linear<B> {
        // Default: up, which is then joined with itself.
        self.gate.as_ref().unwrap_or(&self.up)
    }

    /// Iterates over gate, if there is one, up and down.
    pub fn linears(&self) -> impl Iterator<Item = &Linear<B>> {
        self.gate.iter().chain([&self.up, &self.down])
    }

    /// Returns true if other ranks hold rows of a matrix.
    pub fn is_divided(&self) -> bool {
        self.linears().any(Linear::is_divided)
    }

    /// Returns the bytes that the products read at a level.
    pub fn read_bytes(&self, level: Level) -> u64 {
        self.linears().map(|linear| B::matrix_bytes(&linear.matrix, level)).sum()
    }

    /// Returns the size in bytes of the planes that a level uses, as stored in a store.
    pub fn prefix_bytes(&self, level: Level) -> u64 {
        self.linears().map(|linear| B::matrix_prefix_bytes(&linear.matrix, level)).sum()
    }
}

/// An RMSNorm of queries or keys.
pub enum HeadNorm<B: Backend> {
    /// Absent norm.
    Absent,
    /// Norm of each head, `[head_dim]`.
    PerHead(B::Floats),
    /// Norm of each head after its rotation, `[head_dim]`.
    PerHeadAfterRope(B::Floats),
    /// Norm over all heads of a row together, `[heads * head_dim]`.
    FullWidth(B::Floats),
}

/// Attention heads of one layer.
pub struct AttentionHeads<B: Backend> {
    /// Number of query heads, H.
    pub num_attention_heads: usize,
    /// Number of key heads, G; each serves H / G query heads.
    pub num_key_value_heads: usize,
    /// Number of elements per head.
    pub head_dim: usize,
    /// Factor of attention scores.
    pub scale: f32,
    /// First rotated element of a head.
    pub rope_first: usize,
    /// Pairing of rotated elements.
    pub rope_pairs: RopePairs,
    /// Epsilon of the head norms.
    pub eps: f32,
    /// Norm of queries.
    pub query_norm: HeadNorm<B>,
    /// Norm of keys.
    pub key_norm: HeadNorm<B>,
    /// RMSNorm of each value head, `[head_dim]`.
    pub value_norm: Option<B::Floats>,
    /// Number of positions that a row attends to, including its own; `None` for all.
    pub sliding_window: Option<usize>,
    /// Attention sink logit of each query head, `[H]`: takes part in the softmax but has no value.
    pub sinks: Option<B::Floats>,
}

/// One matrix per head, concatenated along the rows.
pub struct HeadMatrices<B: Backend> {
    /// Matrices of all heads, `[H * N, K]`.
    pub matrix: B::Matrix,
    /// Number of heads, H.
    pub heads: usize,
}

/// The part of a gated DeltaNet layer between its projections.
pub struct DeltaNet<B: Backend> {
    /// Shape of the heads and their states.
    pub shape: DeltaNetConfig,
    /// Convolution weights, oldest position first, `[conv_kernel_dim, channels]`.
    pub conv: B::Floats,
    /// RMSNorm weights that scale each query to unit length, divided by the square root of its dimension.
    pub query_norm: B::Floats,
    /// RMSNorm weights that scale each key to unit length.
    pub key_norm: B::Floats,
    /// Epsilon of the query and key norms.
    pub unit_eps: f32,
    /// Decay rate `-exp(A_log)`, `[num_value_heads]`.
    pub rate: B::Floats,
    /// Bias added to alpha, `[num_value_heads]`.
    pub time_bias: B::Floats,
    /// RMSNorm of each head's output, `[value_head_dim]`.
    pub norm: B::Floats,
    /// Epsilon of the output norm.
    pub eps: f32,
}

/// The part of a gated short convolution between its projections.
pub struct ShortConv<B: Backend> {
    /// Sizes of the layer.
    pub shape: ShortConvConfig,
    /// Convolution weights, oldest position first, `[taps, channels]`.
    pub taps: B::Floats,
    /// Bias of the convolution, `[channels]`.
    pub bias: Option<B::Floats>,
}

/// The part of a Mamba-2 layer between its projections.
pub struct Mamba2<B: Backend> {
    /// Sizes of the layer.
    pub shape: Mamba2Config,
    /// Convolution weights, oldest position first, `[conv_kernel, channels]`.
    pub conv: B::Floats,
    /// Bias of the convolution, `[channels]`.
    pub bias: Option<B::Floats>,
    /// Decay rate `-exp(A_log)`, `[num_heads]`.
    pub rate: B::Floats,
    /// Bias added to the time steps, `[num_heads]`.
    pub time_bias: B::Floats,
    /// Factor D of a head's input in its output, `[num_heads]`.
    pub skip: B::Floats,
    /// RMSNorm of the gated outputs, `[num_heads * head_dim]`.
    pub norm: B::Floats,
}

/// Weights and rule of a router.
pub struct Router<B: Backend> {
    /// Router matrix, `[E, D]`; its activations are floats in all modes.
    pub weights: B::Matrix,
    /// Number of experts per token, K.
    pub num_experts_per_tok: usize,
    /// Rule that converts logits to a choice and weights.
    pub rule: RouterConfig,
    /// Bias added to the logits, `[E]`.
    pub logit_bias: Option<B::Floats>,
    /// Bias added to the scores for the selection only, `[E]`.
    pub selection_bias: Option<B::Floats>,
    /// Factors of the weights of chosen experts, `[E]`.
    pub expert_scale: Option<B::Floats>,
}

/// A routing in host memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routing {
    /// Number of experts per token, K.
    pub num_experts_per_tok: usize,
    /// Chosen experts of each row, ascending.
    pub expert_ids: Vec<u32>, // [T, K]
    /// Weights of the chosen experts.
    pub expert_weights: Vec<f32>, // [T, K]
}

impl HasShape for Routing {
    fn shape(&self) -> Shape {
        let cols = self.num_experts_per_tok;
        // Default: a routing that was not read yet has no rows.
        Shape { rows: self.expert_weights.len().checked_div(cols).unwrap_or(0), cols }
    }
}

/// A use of an expert: one (row, expert) pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertUse {
    /// Row of the step.
    pub row: u32,
    /// Index of the expert among the row's chosen experts.
    pub rank: u32,
    /// Level to compute with.
    pub level: Level,
}

/// An expert that stays resident while this value exists.
pub struct PinnedExpert<'a, B: Backend> {
    /// Expert number within the layer.
    pub expert: u32,
    /// Weights of the expert.
    pub weights: Arc<FeedForward<B>>,
    /// Uses of the expert, by ascending row.
    pub uses: &'a [ExpertUse],
}

/// Size requirements of a slot for any expert of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertShape {
    /// Activation that combines gate and up.
    pub activation: Activation,
    /// Multiplication mode of nested matrices.
    pub activations: ActivationMode,
    /// Shapes of gate, up and down. Without a gate, the first is that of up, with which it shares its place.
    pub matrices: [MatrixShape; 3],
}

/// Largest shape of a matrix among several experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    /// Number of rows (outputs).
    pub rows: usize,
    /// Number of columns (inputs).
    pub cols: usize,
    /// Storage form of the weights.
    pub form: MatrixForm,
}

/// Storage form of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixForm {
    /// Floats.
    Float(DType),
    /// Codes in planes.
    Nested {
        /// Parameters that determine the sizes of planes.
        planes: PlaneForm,
        /// Bit order within a plane.
        layout: Layout,
        /// Transform applied to inputs before a product.
        inputs: InputTransform,
        /// Size of the largest codec in bytes.
        codec_bytes: usize,
        /// Highest level of the planes.
        level: Level,
    },
}

/// Location of a streamed expert's matrix in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPlace {
    /// Number of the slot.
    pub slot: usize,
    /// Layer of the expert.
    pub layer: usize,
    /// Index of the matrix in [`ExpertShape::matrices`]: gate, up or down.
    pub matrix: usize,
}

/// Table entry of a streamed expert in a slot.
pub struct HeldExpert<'a, B: Backend> {
    /// Weights of the expert.
    pub weights: &'a FeedForward<B>,
    /// Highest level whose planes are all in the slot.
    pub level: Level,
}

/// Minimum magnitudes of a router weight for levels 3, 4, 6 and 8, as bits of an f32, ascending. `u32::MAX`
/// disables a level. A NaN weight counts as zero.
pub type LevelWeights = [u32; 4];

/// Measured bandwidth and latency between a device and the host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostLink {
    /// Bandwidth in bytes per second from the host memory that holds planes to the device.
    pub bytes_per_s: f64,
    /// Round-trip time in seconds of a row of activations from the device to the host and back.
    pub round_trip_s: f64,
    /// Bandwidth in bytes per second of the device's own memory.
    pub device_bytes_per_s: f64,
}
