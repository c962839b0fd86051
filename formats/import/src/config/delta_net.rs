//! The sizes of a gated DeltaNet layer, and of what it remembers.

/// A gated DeltaNet layer ([Yang, Kautz, Hatamizadeh 2024](https://arxiv.org/abs/2412.06464)), by its
/// Hugging Face names without `linear_`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeltaNetConfig {
    /// Heads of queries and of keys; divides the number of value heads.
    pub num_key_heads: usize,
    /// Heads of values, each with a state of its own.
    pub num_value_heads: usize,
    /// Elements of a query and of a key.
    pub key_head_dim: usize,
    /// Elements of a value.
    pub value_head_dim: usize,
    /// Positions that the convolution sees, the token's own included.
    pub conv_kernel_dim: usize,
}

impl DeltaNetConfig {
    /// Elements of all queries, and of all keys.
    pub fn key_dim(&self) -> usize {
        self.num_key_heads * self.key_head_dim
    }

    /// Elements of all values, and of what all heads give.
    pub fn value_dim(&self) -> usize {
        self.num_value_heads * self.value_head_dim
    }

    /// What passes the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.key_dim() + self.value_dim()
    }

    /// Rows before a token that its convolution sees.
    pub fn window(&self) -> usize {
        self.conv_kernel_dim.saturating_sub(1)
    }

    /// Columns that a row is projected to: channels, output gates, beta and alpha of every head.
    pub fn inputs(&self) -> usize {
        self.channels() + self.value_dim() + 2 * self.num_value_heads
    }

    /// Floats that a layer remembers of all tokens: the window of the convolution, and a matrix
    /// `[key_head_dim, value_head_dim]` for every value head.
    pub fn state_floats(&self) -> usize {
        self.window() * self.channels() + self.value_dim() * self.key_head_dim
    }
}
