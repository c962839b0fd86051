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
    /// Bias of the query projection.
    QueryBias = 6,
    /// Bias of the key projection.
    KeyBias = 7,
    /// Bias of the value projection.
    ValueBias = 8,
    /// Bias of the attention output projection.
    OutputBias = 9,
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
