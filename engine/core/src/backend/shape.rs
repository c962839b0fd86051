//! Shapes of what operations work with.

use std::fmt::{self, Display, Formatter};

use nestling_formats::Level;

use super::Routing;
use crate::error::EngineError;
use crate::kv_cache::KvShape;
use crate::recurrent::StateShape;

/// Rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows of activations; outputs of a matrix.
    pub rows: usize,
    /// Columns of activations; inputs of a matrix.
    pub cols: usize,
}

impl Display for Shape {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}]", self.rows, self.cols)
    }
}

/// What has rows and columns: activations `[T, N]`, a matrix `[outputs, inputs]`, a routing `[T, K]`, a
/// vector `[1, N]`.
pub trait Shaped {
    /// Its rows and columns now.
    fn shape(&self) -> Shape;
}

impl Shaped for Vec<f32> {
    fn shape(&self) -> Shape {
        Shape { rows: 1, cols: self.len() }
    }
}

impl Shaped for Routing {
    fn shape(&self) -> Shape {
        let cols = self.num_experts_per_tok;
        // Default: a routing that was not read yet has no rows.
        Shape { rows: self.expert_weights.len().checked_div(cols).unwrap_or(0), cols }
    }
}

/// A matrix of which some planes may be missing.
pub trait HoldsLevels {
    /// # Errors
    /// [`EngineError::LevelMissing`] for a level whose planes are not held.
    fn check_level(&self, level: Level) -> Result<(), EngineError>;
}

/// Pages of keys and values of one layer.
pub trait KvPages {
    /// Their heads and values.
    fn kv_shape(&self) -> &KvShape;
}

/// Recurrent states of one layer.
pub trait RecurrentStates {
    /// Their floats.
    fn state_shape(&self) -> &StateShape;
}
