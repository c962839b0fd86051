//! What operations work with: weights in their places, and choices of experts.

use std::sync::Arc;

use nestling_formats::nested::{InputTransform, Layout, PlaneForm};
use nestling_formats::{DType, Level};
use nestling_import::{Activation, DeltaNetConfig, RopePairs, RouterConfig};
use serde::{Deserialize, Serialize};

use super::Backend;
use crate::weights::ActivationMode;

/// A matrix with its optional bias: `y = W x + b`.
pub struct Linear<B: Backend> {
    /// `[N, D]`.
    pub matrix: B::Matrix,
    /// `[N]`.
    pub bias: Option<B::Floats>,
}

/// A gated feed-forward part: `down(activation(gate(x), up(x)))`.
pub struct FeedForward<B: Backend> {
    /// What gate and up are joined by.
    pub activation: Activation,
    /// `[I, D]`.
    pub gate: Linear<B>,
    /// `[I, D]`.
    pub up: Linear<B>,
    /// `[D, I]`.
    pub down: Linear<B>,
}

impl<B: Backend> FeedForward<B> {
    /// Bytes that the three products read at a level.
    pub fn read_bytes(&self, level: Level) -> u64 {
        let parts = [&self.gate, &self.up, &self.down];
        parts.iter().map(|linear| B::matrix_bytes(&linear.matrix, level)).sum()
    }

    /// Bytes of the planes that a level uses, as a store holds them.
    pub fn prefix_bytes(&self, level: Level) -> u64 {
        let parts = [&self.gate, &self.up, &self.down];
        parts.iter().map(|linear| B::matrix_prefix_bytes(&linear.matrix, level)).sum()
    }
}

/// An RMSNorm of queries or keys.
pub enum HeadNorm<B: Backend> {
    /// None.
    Absent,
    /// Of each head, `[head_dim]`.
    PerHead(B::Floats),
    /// Of all heads of a row together, `[heads * head_dim]`.
    FullWidth(B::Floats),
}

/// The heads of one attention layer.
pub struct AttentionHeads<B: Backend> {
    /// Query heads, H.
    pub num_attention_heads: usize,
    /// Key heads, G; each serves H / G query heads.
    pub num_key_value_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Scores are multiplied by this.
    pub scale: f32,
    /// First element of a head that is rotated.
    pub rope_first: usize,
    /// Which elements are rotated with each other.
    pub rope_pairs: RopePairs,
    /// Epsilon of the head norms.
    pub eps: f32,
    /// Norm of queries.
    pub query_norm: HeadNorm<B>,
    /// Norm of keys.
    pub key_norm: HeadNorm<B>,
    /// RMSNorm of each value head, `[head_dim]`.
    pub value_norm: Option<B::Floats>,
    /// How many positions a row sees, its own included; none for all.
    pub sliding_window: Option<usize>,
    /// Logit of each query head that takes part in the softmax and has no value, `[H]`.
    pub sinks: Option<B::Floats>,
}

/// A matrix for every head, one below the other.
pub struct HeadMatrices<B: Backend> {
    /// `[H * N, K]`.
    pub matrix: B::Matrix,
    /// H.
    pub heads: usize,
}

/// A gated DeltaNet layer between its projections.
pub struct DeltaNet<B: Backend> {
    /// Heads, and what they remember.
    pub shape: DeltaNetConfig,
    /// Weights of the convolution, for the oldest position first, `[conv_kernel_dim, channels]`.
    pub conv: B::Floats,
    /// RMSNorm of each query: that to the length 1, divided by the root of its elements.
    pub query_norm: B::Floats,
    /// RMSNorm of each key: that to the length 1.
    pub key_norm: B::Floats,
    /// Epsilon of both.
    pub unit_eps: f32,
    /// `-exp(A_log)`, `[num_value_heads]`.
    pub rate: B::Floats,
    /// Added to alpha, `[num_value_heads]`.
    pub time_bias: B::Floats,
    /// RMSNorm of what each head gives, `[value_head_dim]`.
    pub norm: B::Floats,
    /// Its epsilon.
    pub eps: f32,
}

/// How the router chooses.
pub struct Router<B: Backend> {
    /// `[E, D]`, multiplied with float activations in every mode.
    pub weights: B::Matrix,
    /// Experts chosen for each token, K.
    pub num_experts_per_tok: usize,
    /// How logits become a choice and weights.
    pub rule: RouterConfig,
    /// `[E]`, added to the logits.
    pub logit_bias: Option<B::Floats>,
    /// `[E]`, added to the scores for the choice alone.
    pub selection_bias: Option<B::Floats>,
    /// `[E]`, what the weights of chosen experts are multiplied by.
    pub expert_scale: Option<B::Floats>,
}

/// The router's choice in host memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routing {
    /// K.
    pub num_experts_per_tok: usize,
    /// Chosen experts of each row, ascending.
    pub expert_ids: Vec<u32>, // [T, K]
    /// Their weights.
    pub expert_weights: Vec<f32>, // [T, K]
}

/// One (row, expert) pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertUse {
    /// Row of the step.
    pub row: u32,
    /// Index of the expert among the row's chosen ones.
    pub rank: u32,
    /// Level to compute with.
    pub level: Level,
}

/// An expert that stays resident while this lives.
pub struct PinnedExpert<'a, B: Backend> {
    /// Expert of the layer.
    pub expert: u32,
    /// Its weights.
    pub weights: Arc<FeedForward<B>>,
    /// The rows that use it, ascending.
    pub uses: &'a [ExpertUse],
}

/// What a slot for any expert of a layer has room for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertShape {
    /// What gate and up are joined by.
    pub activation: Activation,
    /// How nested matrices are multiplied.
    pub activations: ActivationMode,
    /// Gate, up and down.
    pub matrices: [MatrixShape; 3],
}

/// The largest that a matrix of some experts can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// How weights are held.
    pub form: MatrixForm,
}

/// How weights are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixForm {
    /// Floats.
    Float(DType),
    /// Codes in planes.
    Nested {
        /// What decides the sizes of planes.
        planes: PlaneForm,
        /// Order of the bits within a plane.
        layout: Layout,
        /// What inputs go through before a product.
        inputs: InputTransform,
        /// Bytes of the largest codec.
        codec_bytes: usize,
        /// The highest level that planes make.
        level: Level,
    },
}

/// Where a matrix of a streamed expert lies in memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPlace {
    /// Number of the slot.
    pub slot: usize,
    /// Layer of the expert.
    pub layer: usize,
    /// Gate, up or down, by its place in [`ExpertShape::matrices`].
    pub matrix: usize,
}

/// What a device is told of a streamed expert.
pub struct HeldExpert<'a, B: Backend> {
    /// Its weights.
    pub weights: &'a FeedForward<B>,
    /// The highest level of which all planes are in its slot.
    pub level: Level,
}

/// The least magnitudes of an expert's weight that it is used from at levels 3, 4, 6 and 8, as bits of
/// an f32, ascending; `u32::MAX` for a level that no weight reaches. A weight that is no number counts
/// as zero.
pub type LevelWeights = [u32; 4];

/// How fast memory moves between a device and the host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostLink {
    /// Bytes per second from memory of the host where planes lie to the device.
    pub bytes_per_s: f64,
    /// Seconds from the device to the host and back, of a row of activations.
    pub round_trip_s: f64,
    /// Bytes per second of the device's own memory.
    pub device_bytes_per_s: f64,
}
