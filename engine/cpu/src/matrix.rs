//! Activations and weights in host memory.

use std::sync::Arc;

use nestling_formats::Level;
use nestling_formats::memory::OutOfMemory;
use nestling_formats::nested::{Codec, InputTransform};

use super::aligned::AlignedFloats;
use super::nested::CodecTables;
use super::scaled::ScaledTables;
use nestling_core::error::EngineError;
use nestling_core::weights::{ActivationMode, MatrixWeights};

/// Activations, `[rows, cols]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuBuffer {
    pub(super) cols: usize,
    pub(super) values: AlignedFloats,
}

impl CpuBuffer {
    /// No rows of so many columns.
    pub(super) fn empty(cols: usize) -> Self {
        Self { cols, values: AlignedFloats::default() }
    }

    /// Rows that hold anything.
    pub(super) fn new(rows: usize, cols: usize) -> Result<Self, OutOfMemory> {
        let mut buffer = Self::empty(cols);
        buffer.resize(rows)?;
        Ok(buffer)
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Rows that it has at the moment.
    pub fn row_count(&self) -> usize {
        // Default: a buffer without columns has no rows.
        self.values.len().checked_div(self.cols).unwrap_or(0)
    }

    /// One row.
    ///
    /// # Panics
    /// With a row that there is not.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..(row + 1) * self.cols]
    }

    /// Sets the number of rows; what they hold is unspecified.
    pub(super) fn resize(&mut self, rows: usize) -> Result<(), OutOfMemory> {
        self.values.try_reserve(rows * self.cols)?;
        self.values.resize(rows * self.cols);
        Ok(())
    }
}

/// Weights with the way to multiply them.
#[derive(Clone, Debug)]
pub struct CpuMatrix {
    pub(super) weights: MatrixWeights,
    pub(super) activations: ActivationMode,
    pub(super) tables: Option<MatrixTables>,
}

/// What kernels look up to decode a matrix, by its codec.
#[derive(Clone, Debug)]
pub(super) enum MatrixTables {
    /// The nested code.
    Nested(Arc<CodecTables>),
    /// Scaled integers.
    Scaled(Arc<ScaledTables>),
}

impl MatrixTables {
    /// The tables of a codec.
    pub fn new(codec: &Codec) -> Result<Self, EngineError> {
        Ok(match codec {
            Codec::Nested(codec) => Self::Nested(Arc::new(CodecTables::new(codec))),
            Codec::Scaled(codec) => Self::Scaled(Arc::new(ScaledTables::new(codec)?)),
        })
    }
}

impl CpuMatrix {
    /// Outputs.
    pub fn rows(&self) -> usize {
        self.weights.rows()
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.weights.cols()
    }

    /// Whether its inputs are rotated before the product.
    pub(super) fn is_rotated(&self) -> bool {
        self.weights.inputs() == InputTransform::Hadamard
    }

    /// Whether activations are quantized for products with it.
    pub(super) fn takes_int8(&self) -> bool {
        self.activations == ActivationMode::Int8 && matches!(self.weights, MatrixWeights::Nested(_))
    }

    /// One row of weights as floats, `[cols]`.
    pub(super) fn read_row(
        &self,
        level: Level,
        row: usize,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        match &self.weights {
            MatrixWeights::Float(matrix) => matrix.read_row(row, out),
            MatrixWeights::Nested(matrix) => {
                matrix.view().dequantize_row(matrix.prefix(level)?, row, out)?;
            }
        }
        Ok(())
    }
}
