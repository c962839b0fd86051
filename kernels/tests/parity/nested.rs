//! Matrices as kernel parameters.

use nestling_core::weights::MatrixWeights;
use nestling_cuda::params::Matrix;
use nestling_formats::nested::{Layout, PlaneForm};
use nestling_formats::{DType, Level};
use nestling_gpu::base_ranges;

use crate::harness::address;

/// Prefix of a level that is not resident.
const NO_LEVEL: u32 = 15;

/// A matrix in host memory, with the bytes of its codec.
pub struct HeldMatrix {
    pub weights: MatrixWeights,
    codec: Vec<u32>,
}

impl HeldMatrix {
    pub fn new(weights: MatrixWeights) -> Self {
        let bytes = match &weights {
            MatrixWeights::Nested(matrix) => matrix.codec().to_bytes(),
            _ => Vec::new(),
        };
        let words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        Self { codec: words.collect(), weights }
    }

    /// Returns the kernel parameters, whose addresses refer to `self`.
    pub fn params(&self) -> Matrix {
        let (rows, cols) = (self.weights.rows(), self.weights.cols());
        let mut out = Matrix { rows: rows as u32, cols: cols as u32, ..Matrix::default() };
        match &self.weights {
            MatrixWeights::Float(matrix) => {
                out.row_scales = address(matrix.bytes());
                out.form = match matrix.dtype() {
                    DType::F16 => 1,
                    DType::Bf16 => 2,
                    _ => 0,
                };
            }
            MatrixWeights::Nested(matrix) => {
                let form = matrix.codec().form();
                let parts = base_ranges(&form, matrix.layout(), rows, cols).unwrap();
                let planes = matrix.regions().planes();
                let at = |plane: Option<&[u8]>| plane.map_or(0, address);
                let [scales, tables, steps, step_high, codes] =
                    parts.map(|part| address(&planes.p2[part]));
                (out.row_scales, out.tile_tables) = (scales, tables);
                (out.steps, out.step_high) = (steps, step_high);
                out.p2 = codes;
                out.p3 = at(planes.p34.or(planes.p3));
                out.p4 = at(planes.p4);
                out.p6 = at(planes.p6);
                out.p8 = at(planes.p8);
                out.codec = address(&self.codec);
                let scaled = if form == PlaneForm::Nested { 0 } else { 2 };
                out.form = scaled + if matrix.layout() == Layout::Tile16 { 3 } else { 4 };
                out.is_merged = planes.p34.is_some().into();
                out.groups = cols.div_ceil(32) as u32;
                for level in Level::ALL {
                    let prefix = matrix.prefix(level).map_or(NO_LEVEL, |at| at.index() as u32);
                    out.prefixes |= prefix << (4 * level.index());
                }
            }
        }
        out
    }
}
