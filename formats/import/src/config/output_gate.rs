//! Gate of the attention output.

/// Gate of the attention output: a function of a projection of the layer's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputGate {
    /// Ungated output.
    Open,
    /// Sigmoids, one per element.
    Sigmoid,
    /// Softplus, one per element.
    Softplus,
    /// Softplus, one per head.
    SoftplusPerHead,
}

/// Function of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GateFunction {
    /// 1 / (1 + e^-x).
    Sigmoid,
    /// ln(1 + e^x).
    Softplus,
}

impl OutputGate {
    /// Returns the function of the gates, if there are any.
    pub fn function(self) -> Option<GateFunction> {
        match self {
            Self::Open => None,
            Self::Sigmoid => Some(GateFunction::Sigmoid),
            Self::Softplus | Self::SoftplusPerHead => Some(GateFunction::Softplus),
        }
    }

    /// Returns the number of gates of `heads` heads, which are the rows of the projection.
    pub fn count(self, heads: usize, head_dim: usize) -> usize {
        match self {
            Self::Open => 0,
            Self::Sigmoid | Self::Softplus => heads * head_dim,
            Self::SoftplusPerHead => heads,
        }
    }
}
