//! Sizes of gated DeltaNet layers and their recurrent states.

/// Sizes of a gated DeltaNet layer ([Yang, Kautz, Hatamizadeh 2024](https://arxiv.org/abs/2412.06464)). The
/// names are those of Hugging Face without `linear_`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeltaNetConfig {
    /// Number of query heads and of key heads; divides the number of value heads.
    pub num_key_heads: usize,
    /// Number of value heads, each with its own state.
    pub num_value_heads: usize,
    /// Elements of a query or key.
    pub key_head_dim: usize,
    /// Elements of a value.
    pub value_head_dim: usize,
    /// Kernel size of the convolution in positions, including the current token.
    pub conv_kernel_dim: usize,
}

impl DeltaNetConfig {
    /// Returns the number of elements of all queries. All keys have the same number.
    pub fn key_dim(&self) -> usize {
        self.num_key_heads * self.key_head_dim
    }

    /// Returns the number of elements of all values. The output of all heads has the same number.
    pub fn value_dim(&self) -> usize {
        self.num_value_heads * self.value_head_dim
    }

    /// Returns the number of channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.key_dim() + self.value_dim()
    }

    /// Returns the number of rows before the current token that the convolution reads.
    pub fn window(&self) -> usize {
        self.conv_kernel_dim.saturating_sub(1)
    }

    /// Returns the number of columns of the input projection: channels, output gates, and beta and alpha of
    /// each head.
    pub fn inputs(&self) -> usize {
        self.channels() + self.value_dim() + 2 * self.num_value_heads
    }

    /// Returns the size of a layer's recurrent state in floats. The state consists of the window of the
    /// convolution, and a matrix `[key_head_dim, value_head_dim]` per value head.
    pub fn state_floats(&self) -> usize {
        self.window() * self.channels() + self.value_dim() * self.key_head_dim
    }
}
