//! Activation functions, and the projections that they join.

use nestling_formats::MatrixKind;

/// Activation function of the feed-forward parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate) * up`.
    Silu,
    /// `clamp(gate) * sigmoid(alpha * clamp(gate)) * (clamp(up) + 1)`. The gate is clamped to at most
    /// `limit`, up to the range from `-limit` to `limit`.
    ClampedSwiglu {
        /// Factor of the gate inside the sigmoid.
        alpha: f32,
        /// Clamping limit of gate and up.
        limit: f32,
    },
    /// `gelu(gate) * up`, with the tanh approximation.
    GeluTanh,
    /// `max(up, 0) * up`, without a gate.
    Relu2,
}

impl Activation {
    /// Returns true if a feed-forward part has a gate besides its up projection.
    pub fn has_gate(self) -> bool {
        self != Self::Relu2
    }

    /// Returns the projections of a feed-forward part, in the order of a store.
    pub fn matrices(self) -> &'static [MatrixKind] {
        const ALL: &[MatrixKind] = &[MatrixKind::Gate, MatrixKind::Up, MatrixKind::Down];
        if self.has_gate() { ALL } else { &ALL[1..] }
    }
}
