//! Sizes that gated DeltaNet and Mamba-2 have in common.

use nestling_import::{DeltaNetConfig, Mamba2Config};

use crate::delta_net::StateRule;

/// Sizes of heads and of the convolved rows that they read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadShape {
    /// Rule by which values enter a state.
    pub rule: StateRule,
    /// Number of heads with a state of their own.
    pub heads: usize,
    /// Number of keys and of queries; divides the number of heads.
    pub shared_heads: usize,
    /// Elements of a key and of a query.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// First column of queries, keys and values.
    pub columns: [usize; 3],
    /// Columns of convolved rows.
    pub channels: usize,
    /// Rows before the current token that the convolution reads.
    pub window: usize,
}

impl From<&DeltaNetConfig> for HeadShape {
    fn from(shape: &DeltaNetConfig) -> Self {
        Self {
            rule: StateRule::Delta,
            heads: shape.num_value_heads,
            shared_heads: shape.num_key_heads,
            key_dim: shape.key_head_dim,
            value_dim: shape.value_head_dim,
            columns: [0, shape.key_dim(), 2 * shape.key_dim()],
            channels: shape.channels(),
            window: shape.window(),
        }
    }
}

/// C is the query, B the key and x the value.
impl From<&Mamba2Config> for HeadShape {
    fn from(shape: &Mamba2Config) -> Self {
        let (inner, groups) = (shape.inner(), shape.groups_dim());
        Self {
            rule: StateRule::Scaled,
            heads: shape.num_heads,
            shared_heads: shape.n_groups,
            key_dim: shape.state_size,
            value_dim: shape.head_dim,
            columns: [inner + groups, inner, 0],
            channels: shape.channels(),
            window: shape.window(),
        }
    }
}

impl HeadShape {
    /// Returns the number of elements of all values.
    pub fn width(&self) -> usize {
        self.heads * self.value_dim
    }
}
