//! What a product must know of a matrix, wherever its planes are.

use nestling_formats::nested::{InputTransform, Layout, PlaneForm};

use super::expect;
use nestling_core::EngineError;
use nestling_core::backend::{MatrixForm, MatrixShape};
use nestling_core::weights::{ActivationMode, MatrixWeights};

/// What a matrix is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProductKind {
    /// Activations in int8.
    Int8,
    /// Activations as they are.
    Float,
}

impl ProductKind {
    /// That of a matrix of codes or of floats.
    fn of(nested: bool, activations: ActivationMode) -> Self {
        if nested && activations == ActivationMode::Int8 { Self::Int8 } else { Self::Float }
    }
}

/// What a product must know of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductForm {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// What it is multiplied with.
    pub kind: ProductKind,
    /// Whether its inputs are rotated before the product.
    pub rotated: bool,
    /// Whether rows lie interleaved by 16, as nested matrices do unless they have fewer.
    pub is_tiled: bool,
    /// Whether its codes are scaled integers, of any form.
    pub is_scaled: bool,
}

impl ProductForm {
    /// That of weights.
    pub fn of(weights: &MatrixWeights, activations: ActivationMode) -> Self {
        let (nested, is_tiled, is_scaled) = match weights {
            MatrixWeights::Nested(matrix) => {
                let is_scaled = matrix.codec().form() != PlaneForm::Nested;
                (true, matrix.layout() == Layout::Tile16, is_scaled)
            }
            MatrixWeights::Float(_) => (false, false, false),
        };
        Self {
            rows: weights.rows(),
            cols: weights.cols(),
            kind: ProductKind::of(nested, activations),
            rotated: weights.inputs() == InputTransform::Hadamard,
            is_tiled,
            is_scaled,
        }
    }

    /// That of a matrix which is still to come.
    pub fn of_shape(shape: &MatrixShape, activations: ActivationMode) -> Self {
        let (rows, cols) = (shape.rows, shape.cols);
        match shape.form {
            MatrixForm::Float(_) => {
                let kind = ProductKind::Float;
                Self { rows, cols, kind, rotated: false, is_tiled: false, is_scaled: false }
            }
            MatrixForm::Nested { planes, layout, inputs, .. } => Self {
                rows,
                cols,
                kind: ProductKind::of(true, activations),
                rotated: inputs == InputTransform::Hadamard,
                is_tiled: layout == Layout::Tile16,
                is_scaled: planes != PlaneForm::Nested,
            },
        }
    }
}

/// Heads whose matrices lie one below the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadsForm {
    /// How many.
    pub count: usize,
    /// Inputs and outputs of each.
    pub inputs: usize,
    /// Outputs of each.
    pub outputs: usize,
    /// Elements of a head, of which the first are its inputs.
    pub width: usize,
    /// Those behind its inputs.
    pub rest: usize,
}

impl HeadsForm {
    /// Of a matrix for so many heads, between rows of so many columns.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn of(
        matrix: &ProductForm,
        heads: usize,
        x_cols: usize,
        out_cols: usize,
    ) -> Result<Self, EngineError> {
        let count = heads.max(1);
        expect("rows of the heads' matrices", 0, matrix.rows % count)?;
        expect("columns of heads", 0, x_cols % count)?;
        let (inputs, outputs, width) = (matrix.cols, matrix.rows / count, x_cols / count);
        let rest = width.checked_sub(inputs).ok_or_else(|| {
            EngineError::mismatch("columns of heads", format!("{inputs} or more"), width)
        })?;
        expect("columns of the heads' products", count * (outputs + rest), out_cols)?;
        Ok(Self { count, inputs, outputs, width, rest })
    }
}
