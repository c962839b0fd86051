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
    /// Creates a buffer of `cols` columns without rows.
    pub(super) fn empty(cols: usize) -> Self {
        Self { cols, values: AlignedFloats::default() }
    }

    /// Creates a buffer with unspecified contents.
    pub(super) fn new(rows: usize, cols: usize) -> Result<Self, OutOfMemory> {
        let mut buffer = Self::empty(cols);
        buffer.resize(rows)?;
        Ok(buffer)
    }

    /// Returns the number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the current number of rows.
    pub fn row_count(&self) -> usize {
        // Default: a buffer without columns has no rows.
        self.values.len().checked_div(self.cols).unwrap_or(0)
    }

    /// Returns one row.
    ///
    /// # Panics
    /// Panics if there is no such row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..(row + 1) * self.cols]
    }

    /// Sets the number of rows. Their contents are unspecified.
    pub(super) fn resize(&mut self, rows: usize) -> Result<(), OutOfMemory> {
        self.values.try_reserve(rows * self.cols)?;
        self.values.resize(rows * self.cols);
        Ok(())
    }
}

/// Weights with their multiplication mode.
#[derive(Clone, Debug)]
pub struct CpuMatrix {
    pub(super) weights: MatrixWeights,
    pub(super) activations: ActivationMode,
    pub(super) tables: Option<MatrixTables>,
}

/// Lookup tables for decoding a matrix, by kind of codec.
#[derive(Clone, Debug)]
pub(super) enum MatrixTables {
    Nested(Arc<CodecTables>),
    Scaled(Arc<ScaledTables>),
}

impl MatrixTables {
    pub fn new(codec: &Codec) -> Result<Self, EngineError> {
        Ok(match codec {
            Codec::Nested(codec) => Self::Nested(Arc::new(CodecTables::new(codec))),
            Codec::Scaled(codec) => Self::Scaled(Arc::new(ScaledTables::new(codec)?)),
        })
    }
}

impl CpuMatrix {
    /// Returns the number of outputs.
    pub fn rows(&self) -> usize {
        self.weights.rows()
    }

    /// Returns the number of inputs.
    pub fn cols(&self) -> usize {
        self.weights.cols()
    }

    /// Returns whether the inputs are rotated before the product.
    pub(super) fn is_rotated(&self) -> bool {
        self.weights.inputs() == InputTransform::Hadamard
    }

    /// Returns whether products with this matrix use quantized activations.
    pub(super) fn takes_int8(&self) -> bool {
        self.activations == ActivationMode::Int8 && matches!(self.weights, MatrixWeights::Nested(_))
    }

    /// Reads one row of weights as floats, `[cols]`.
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
