//! Properties of a matrix that products depend on, independent of where its planes are stored.

use nestling_formats::nested::{InputTransform, Layout, PlaneForm};

use super::expect;
use nestling_core::EngineError;
use nestling_core::backend::{MatrixForm, MatrixShape};
use nestling_core::weights::{ActivationMode, MatrixWeights};

/// Input format of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProductKind {
    /// Activations in int8.
    Int8,
    /// Activations in f32.
    Float,
}

impl ProductKind {
    fn of(nested: bool, activations: ActivationMode) -> Self {
        if nested && activations == ActivationMode::Int8 { Self::Int8 } else { Self::Float }
    }
}

/// Properties of a matrix that products depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductForm {
    /// Number of outputs.
    pub rows: usize,
    /// Number of inputs.
    pub cols: usize,
    /// Input format.
    pub kind: ProductKind,
    /// True if inputs are rotated before the product.
    pub rotated: bool,
    /// True if rows are interleaved in tiles of 16. Nested matrices with fewer than 16 rows are not.
    pub is_tiled: bool,
    /// True if the codes are scaled integers of any form.
    pub is_scaled: bool,
}

impl ProductForm {
    /// Returns the form of weights.
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

    /// Returns the form of a matrix that is not loaded yet.
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

/// Shapes of per-head products, with the heads' matrices stacked along rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadsForm {
    /// Number of heads.
    pub count: usize,
    /// Inputs of each head.
    pub inputs: usize,
    /// Outputs of each head.
    pub outputs: usize,
    /// Elements of a head. The first `inputs` of them are multiplied.
    pub width: usize,
    /// Elements of a head after its inputs.
    pub rest: usize,
}

impl HeadsForm {
    /// Returns the shapes of a matrix for `heads` heads, given the columns of input and output rows.
    ///
    /// # Errors
    /// Returns an error if the shapes do not match.
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
