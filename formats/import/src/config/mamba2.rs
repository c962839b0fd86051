//! Sizes of Mamba-2 layers and their recurrent states.

/// Sizes of a Mamba-2 layer ([Dao, Gu 2024](https://arxiv.org/abs/2405.21060)). The names are those of the
/// Hugging Face class `Mamba2Config`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mamba2Config {
    /// Number of heads, each with its own state, decay and time step.
    pub num_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Number of groups of heads that share the vectors B and C; divides the number of heads.
    pub n_groups: usize,
    /// Elements of B and of C: rows of a head's state.
    pub state_size: usize,
    /// Kernel size of the convolution in positions, including the current token.
    pub conv_kernel: usize,
    /// True if the convolution has a bias.
    pub conv_bias: bool,
    /// True if both projections have biases.
    pub proj_bias: bool,
    /// Epsilon of the output norm.
    pub norm_eps: f32,
}

impl Mamba2Config {
    /// Returns the number of elements of all heads.
    pub fn inner(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Returns the number of elements of B of all groups. C has the same number.
    pub fn groups_dim(&self) -> usize {
        self.n_groups * self.state_size
    }

    /// Returns the number of elements that are normalized together: those of a group's heads.
    pub fn norm_group(&self) -> usize {
        self.inner() / self.n_groups.max(1)
    }

    /// Returns the number of channels of the convolution: inputs of the heads, B and C.
    pub fn channels(&self) -> usize {
        self.inner() + 2 * self.groups_dim()
    }

    /// Returns the number of rows before the current token that the convolution reads.
    pub fn window(&self) -> usize {
        self.conv_kernel.saturating_sub(1)
    }

    /// Returns the number of columns of the input projection: output gates, channels, and the time step of
    /// each head.
    pub fn inputs(&self) -> usize {
        self.inner() + self.channels() + self.num_heads
    }

    /// Returns the size of a layer's recurrent state in floats. The state consists of the window of the
    /// convolution, and a matrix `[state_size, head_dim]` per head.
    pub fn state_floats(&self) -> usize {
        self.window() * self.channels() + self.inner() * self.state_size
    }
}
