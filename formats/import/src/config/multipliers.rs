//! Constant factors of activations.

/// Constant factors of activations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Multipliers {
    /// Factor of the embeddings.
    pub embedding: f32,
    /// Factor of the parts' outputs that are added to the residual stream.
    pub residual: f32,
    /// Factor of the logits.
    pub logits: f32,
}

impl Multipliers {
    /// All factors 1.
    pub const NONE: Self = Self { embedding: 1.0, residual: 1.0, logits: 1.0 };
}
