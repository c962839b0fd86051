//! Names of weights that no file format and no architecture owns.

/// What a two-dimensional weight does in the graph.
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
    /// Projection of the gate on attended heads, `[num_attention_heads * head_dim, hidden_size]`.
    QueryGate = 9,
    /// Latent attention: hidden state to latent query, `[q_lora_rank, hidden_size]`.
    QueryDown = 10,
    /// Latent attention: latent query to queries,
    /// `[num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim), q_lora_rank]`.
    QueryUp = 11,
    /// Latent attention: hidden state to latent and shared key,
    /// `[kv_lora_rank + qk_rope_head_dim, hidden_size]`.
    LatentDown = 12,
    /// Latent attention: queries of each head to the latent space,
    /// `[num_attention_heads * kv_lora_rank, qk_nope_head_dim]`.
    KeyUp = 13,
    /// Latent attention: attended latents of each head to values,
    /// `[num_attention_heads * v_head_dim, kv_lora_rank]`.
    ValueUp = 14,
    /// Gated DeltaNet: queries, keys and values side by side.
    DeltaIn = 15,
    /// Gated DeltaNet: the gate of the output norm.
    DeltaGate = 16,
    /// Gated DeltaNet: beta and decay of each value head.
    DeltaBetaDecay = 17,
    /// Gated DeltaNet: output projection.
    DeltaOut = 18,
}

/// One matrix of a model: an expert's when `expert` is set, else the layer's, else the model's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MatrixId {
    /// What the matrix does.
    pub kind: MatrixKind,
    /// Layer, or none for the embedding and the head.
    pub layer: Option<u32>,
    /// Expert within the layer, or none for a dense matrix.
    pub expert: Option<u32>,
}

/// What a tensor that stays in float does in the graph.
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
    /// Bias of the query projection; where attention has an output gate, that of the gate's after it.
    QueryBias = 6,
    /// Bias of the key projection.
    KeyBias = 7,
    /// Bias of the value projection.
    ValueBias = 8,
    /// Bias of the attention output projection.
    OutputBias = 9,
    /// Row that the sigmoid gate of the shared expert is the product with, `[hidden_size]`.
    SharedGate = 10,
    /// Added to router scores for the choice of experts, `[num_experts]`.
    RouterBias = 11,
    /// Added to router logits, `[num_experts]`.
    RouterLogitBias = 12,
    /// Logit of each query head that takes part in the softmax over positions and has no value.
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
    /// Gated DeltaNet: the negative decay rate of each value head, `-exp(A_log)`.
    DeltaDecay = 20,
    /// Gated DeltaNet: added to each value head's time step.
    DeltaTimeBias = 21,
    /// Gated DeltaNet: RMSNorm of each head's output.
    DeltaNorm = 22,
    /// Factors of the router's normed inputs, `[hidden_size]`.
    RouterInputScale = 23,
    /// Factor of each expert's weight, `[num_experts]`.
    ExpertScale = 24,
    /// RMSNorm after attention, `[hidden_size]`.
    PostAttentionNorm = 25,
    /// RMSNorm after the whole feed-forward part, `[hidden_size]`.
    PostFeedForwardNorm = 26,
    /// RMSNorm after the dense part beside the experts, `[hidden_size]`.
    PostSharedNorm = 27,
    /// RMSNorm before the experts, `[hidden_size]`.
    PreExpertNorm = 28,
    /// RMSNorm after the experts, `[hidden_size]`.
    PostExpertNorm = 29,
    /// Factor of a layer's output.
    LayerScalar = 30,
}

impl FloatKind {
    /// Whether it has a row for every expert, of which a token needs those of its own.
    pub fn is_of_experts(self) -> bool {
        matches!(self, Self::ExpertGateBias | Self::ExpertUpBias | Self::ExpertDownBias)
    }
}

/// One float tensor of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FloatId {
    /// What the tensor does.
    pub kind: FloatKind,
    /// Layer, or none for the final norm.
    pub layer: Option<u32>,
}

/// One expert of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExpertId {
    /// Layer.
    pub layer: u32,
    /// Expert within the layer.
    pub expert: u32,
}
