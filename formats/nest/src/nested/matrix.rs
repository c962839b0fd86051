//! A quantized matrix before it is packed into planes.

use half::f16;

use super::layout::Grid;
use super::{GROUP, NestedError, TILE_ROWS};

/// Complete codes of a matrix with their scales.
///
/// `rows_padded` is the next multiple of 16, `cols_padded` of 32. Padded rows have scale 0.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedMatrix {
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix, the input dimension.
    pub cols: usize,
    /// Eight-bit codes, `[rows_padded, cols_padded]`.
    pub codes: Vec<u8>,
    /// Row scales, `[rows_padded]`; 0 makes a zero row.
    pub row_scales: Vec<f16>,
    /// Scale steps below the row scale, 0..=31, `[rows_padded, groups]`; 31 makes a zero group.
    pub steps: Vec<u8>,
    /// Table index of each tile of 16 rows, `[tiles]`.
    pub tile_tables: Vec<u8>,
}

impl QuantizedMatrix {
    /// Checks that all fields match in length. Called by each function that takes the matrix.
    pub(super) fn check(&self) -> Result<Grid, NestedError> {
        let shape = NestedError::Shape { rows: self.rows, cols: self.cols };
        let grid = Grid::new(self.rows, self.cols).ok_or(shape)?;
        let rows = grid.tiles * TILE_ROWS;
        for (what, expected, found) in [
            ("codes", rows * grid.groups * GROUP, self.codes.len()),
            ("row scales", rows, self.row_scales.len()),
            ("steps", rows * grid.groups, self.steps.len()),
            ("tile tables", grid.tiles, self.tile_tables.len()),
        ] {
            if found != expected {
                return Err(NestedError::Length { what, expected, found });
            }
        }
        match self.steps.iter().position(|step| *step > 31) {
            None => Ok(grid),
            Some(at) => Err(NestedError::Step {
                row: at / grid.groups,
                group: at % grid.groups,
                step: self.steps[at],
            }),
        }
    }
}
