//! Names of weights, independent of file formats and architectures.

/// Role of a two-dimensional weight in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum MatrixKind {
    /// Token embedding, `[vocab_size, hidden_size]`; rows are gathered.
    Embedding = 0,
    /// Output head, `[vocab_size, hidden_size]`.
    Head = 1,
    /// Query projection, `[num_attention_heads * head_dim, hidden_size]`.
    Query = 2,
    /// Key projection, `[num_key_value_heads * head_dim, hidden_size]`.
    Key = 3,
    /// Value projection, `[num_key_value_heads * head_dim, hidden_size]`.
    Value = 4,
    /// Attention output projection, `[hidden_size, num_attention_heads * head_dim]`.
    Output = 5,
    /// SwiGLU gate projection, `[intermediate, hidden_size]`.
    Gate = 6,
    /// SwiGLU up projection, `[intermediate, hidden_size]`.
    Up = 7,
    /// SwiGLU down projection, `[hidden_size, intermediate]`.
    Down = 8,
    /// Projection of the attention output gate, `[num_attention_heads * head_dim, hidden_size]`.
    QueryGate = 9,
    /// Latent attention: projection of the hidden state to the latent query, `[q_lora_rank, hidden_size]`.
    QueryDown = 10,
    /// Latent attention: projection of the latent query to queries, `[num_attention_heads * (qk_nope_head_dim
    /// + qk_rope_head_dim), q_lora_rank]`.
    QueryUp = 11,
    /// Latent attention: projection of the hidden state to the latent and the shared key, `[kv_lora_rank +
    /// qk_rope_head_dim, hidden_size]`.
    LatentDown = 12,
    /// Latent attention: projection of each head's queries to the latent space, `[num_attention_heads *
    /// kv_lora_rank, qk_nope_head_dim]`.
    KeyUp = 13,
    /// Latent attention: projection of each head's attended latents to values, `[num_attention_heads *
    /// v_head_dim, kv_lora_rank]`.
    ValueUp = 14,
    /// Gated DeltaNet: concatenated projections of queries, keys and values.
    DeltaIn = 15,
    /// Gated DeltaNet: projection of the gate of the output norm.
    DeltaGate = 16,
    /// Gated DeltaNet: projections of beta and decay of each value head.
    DeltaBetaDecay = 17,
    /// Gated DeltaNet: output projection.
    DeltaOut = 18,
    /// Gated short convolution: input gates, output gates and inputs, `[3 * channels, hidden_size]`.
    ShortConvIn = 19,
    /// Gated short convolution: output projection, `[hidden_size, channels]`.
    ShortConvOut = 20,
    /// Mamba-2: output gates, inputs of the heads, B and C of each group, and time steps.
    Mamba2In = 21,
    /// Mamba-2: output projection, `[hidden_size, num_heads * head_dim]`.
    Mamba2Out = 22,
}

/// Identity of a matrix. It belongs to an expert if `expert` is set, else to a layer if `layer` is set, else
/// to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MatrixId {
    /// Role of the matrix.
    pub kind: MatrixKind,
    /// Layer, or `None` for the embedding and the head.
    pub layer: Option<u32>,
    /// Expert within the layer, or `None` for a dense matrix.
    pub expert: Option<u32>,
}

/// Role in the graph of a tensor that is stored as floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FloatKind {
    /// RMSNorm before the head, `[hidden_size]`.
    FinalNorm = 0,
    /// RMSNorm before attention, `[hidden_size]`.
    AttentionNorm = 1,
    /// RMSNorm before the feed-forward part, `[hidden_size]`.
    FeedForwardNorm = 2,
    /// RMSNorm of each query head, `[head_dim]`.
    QueryNorm = 3,
    /// RMSNorm of each key head, `[head_dim]`.
    KeyNorm = 4,
    /// Router, `[num_experts, hidden_size]`.
    Router = 5,
    /// Bias of the query projection, followed by the bias of the attention output gate if there is one.
    QueryBias = 6,
    /// Bias of the key projection.
    KeyBias = 7,
    /// Bias of the value projection.
    ValueBias = 8,
    /// Bias of the attention output projection.
    OutputBias = 9,
    /// Gate row of the shared expert, `[hidden_size]`: the sigmoid of its dot product with the input scales
    /// the expert's output.
    SharedGate = 10,
    /// Bias added to router scores when experts are selected, `[num_experts]`.
    RouterBias = 11,
    /// Bias added to router logits, `[num_experts]`.
    RouterLogitBias = 12,
    /// Attention sink logit of each query head: takes part in the softmax over positions but has no value.
    Sinks = 13,
    /// Biases of the gate projections of all experts, `[num_experts, intermediate]`.
    ExpertGateBias = 14,
    /// Biases of the up projections of all experts, `[num_experts, intermediate]`.
    ExpertUpBias = 15,
    /// Biases of the down projections of all experts, `[num_experts, hidden_size]`.
    ExpertDownBias = 16,
    /// RMSNorm of the latent query, `[q_lora_rank]`.
    QueryLatentNorm = 17,
    /// RMSNorm of the latent, `[kv_lora_rank]`.
    LatentNorm = 18,
    /// Gated DeltaNet: causal convolution of each channel, `[channels, kernel]`.
    DeltaConv = 19,
    /// Gated DeltaNet: negative decay rate of each value head, `-exp(A_log)`.
    DeltaDecay = 20,
    /// Gated DeltaNet: bias added to each value head's time step.
    DeltaTimeBias = 21,
    /// Gated DeltaNet: RMSNorm of each head's output.
    DeltaNorm = 22,
    /// Factors applied to the router's normed inputs, `[hidden_size]`.
    RouterInputScale = 23,
    /// Factor of each expert's weight, `[num_experts]`.
    ExpertScale = 24,
    /// RMSNorm after attention, `[hidden_size]`.
    PostAttentionNorm = 25,
    /// RMSNorm after the whole feed-forward part, `[hidden_size]`.
    PostFeedForwardNorm = 26,
    /// RMSNorm after the dense part that runs beside the experts, `[hidden_size]`.
    PostSharedNorm = 27,
    /// RMSNorm before the experts, `[hidden_size]`.
    PreExpertNorm = 28,
    /// RMSNorm after the experts, `[hidden_size]`.
    PostExpertNorm = 29,
    /// Factor of a layer's output.
    LayerScalar = 30,
    /// Gated short convolution: causal convolution of each channel, `[channels, taps]`.
    ShortConvTaps = 31,
    /// Gated short convolution: bias of the convolution, `[channels]`.
    ShortConvBias = 32,
    /// Gated short convolution: bias of the input projection, `[3 * channels]`.
    ShortConvInBias = 33,
    /// Gated short convolution: bias of the output projection, `[hidden_size]`.
    ShortConvOutBias = 34,
    /// Mamba-2: causal convolution of each channel, `[channels, conv_kernel]`.
    Mamba2Conv = 35,
    /// Mamba-2: bias of the convolution, `[channels]`.
    Mamba2ConvBias = 36,
    /// Mamba-2: bias of the input projection.
    Mamba2InBias = 37,
    /// Mamba-2: bias of the output projection, `[hidden_size]`.
    Mamba2OutBias = 38,
    /// Mamba-2: negative decay rate of each head, `-exp(A_log)`.
    Mamba2Decay = 39,
    /// Mamba-2: bias added to each head's time step.
    Mamba2TimeBias = 40,
    /// Mamba-2: factor D of each head's input in its output.
    Mamba2Skip = 41,
    /// Mamba-2: RMSNorm of the gated outputs, `[num_heads * head_dim]`.
    Mamba2Norm = 42,
}

impl FloatKind {
    /// Returns whether the tensor has one row per expert. A token needs the rows of its routed experts only.
    pub fn is_of_experts(self) -> bool {
        matches!(self, Self::ExpertGateBias | Self::ExpertUpBias | Self::ExpertDownBias)
    }
}

/// Identity of a float tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FloatId {
    /// Role of the tensor.
    pub kind: FloatKind,
    /// Layer, or `None` for the final norm.
    pub layer: Option<u32>,
}

/// Identity of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExpertId {
    /// Layer of the expert.
    pub layer: u32,
    /// Expert within the layer.
    pub expert: u32,
}
