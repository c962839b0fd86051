//! Shapes of operands.

use std::fmt::{self, Display, Formatter};

use nestling_formats::Level;

use crate::error::EngineError;
use crate::kv_cache::KvShape;
use crate::recurrent::StateShape;

/// Number of rows and columns.
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

/// An operand with a shape: activations `[T, N]`, a matrix `[outputs, inputs]`, a routing `[T, K]`, a vector
/// `[1, N]`.
pub trait HasShape {
    /// Returns the current shape.
    fn shape(&self) -> Shape;
}

impl HasShape for Vec<f32> {
    fn shape(&self) -> Shape {
        Shape { rows: 1, cols: self.len() }
    }
}

/// A matrix that may lack some planes.
pub trait HoldsLevels {
    /// # Errors
    /// [`EngineError::LevelMissing`] if the planes of a level are not held.
    fn check_level(&self, level: Level) -> Result<(), EngineError>;
}

/// KV cache pages of one layer.
pub trait KvPages {
    /// Returns the shape of the pages.
    fn kv_shape(&self) -> &KvShape;
}

/// Recurrent states of one layer.
pub trait RecurrentStates {
    /// Returns the shape of the states.
    fn state_shape(&self) -> &StateShape;
}
