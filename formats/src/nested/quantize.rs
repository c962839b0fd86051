//! From weights to codes: scales, rounding.

use half::f16;

use super::layout::Grid;
use super::{GROUP, NestedCodec, NestedError, QuantizedMatrix, STEPS, TILE_ROWS, ZERO_STEP};

/// The code of padding and of zero groups: the cell just above zero.
const ZERO_CODE: u8 = 128;

/// How to fit codecs and choose codes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct QuantizeOptions {
    /// Weight of the error of levels 2, 3, 4, 6 and 8, each relative to its usual size.
    pub level_weights: [f32; 5],
}

impl Default for QuantizeOptions {
    fn default() -> Self {
        Self { level_weights: [1.0; 5] }
    }
}

/// Codes a matrix `[rows, cols]` with a codec fitted before.
///
/// `importance`, `[cols]`, weighs the squared error of each column, such as the mean square of its
/// activation; none means that all are alike.
pub fn quantize_matrix(
    weights: &[f32],
    rows: usize,
    cols: usize,
    codec: &NestedCodec,
    importance: Option<&[f32]>,
    _options: &QuantizeOptions,
) -> Result<QuantizedMatrix, NestedError> {
    let grid = check_input(weights, rows, cols, importance)?;
    codec.check()?;
    let rows_padded = grid.tiles * TILE_ROWS;
    let mut matrix = QuantizedMatrix {
        rows,
        cols,
        codes: vec![ZERO_CODE; rows_padded * grid.groups * GROUP],
        row_scales: vec![f16::ZERO; rows_padded],
        steps: vec![ZERO_STEP; rows_padded * grid.groups],
        tile_tables: vec![0; grid.tiles],
    };
    for (row, weights) in weights.chunks_exact(cols).enumerate() {
        let scale = ceil_f16(largest(weights));
        matrix.row_scales[row] = scale;
        for (group, weights) in weights.chunks(GROUP).enumerate() {
            let cell = row * grid.groups + group;
            let peak = largest(weights);
            if peak == 0.0 {
                continue;
            }
            let step = (0..ZERO_STEP)
                .rev()
                .find(|step| scale.to_f32() * STEPS[usize::from(*step)] >= peak)
                .unwrap_or(0);
            matrix.steps[cell] = step;
            let inverse = 1.0 / (scale.to_f32() * STEPS[usize::from(step)]);
            let codes = &mut matrix.codes[cell * GROUP..][..GROUP];
            for (code, weight) in codes.iter_mut().zip(weights) {
                *code = round(codec, weight * inverse);
            }
        }
    }
    Ok(matrix)
}

/// The code whose cell holds `u`.
pub(super) fn round(codec: &NestedCodec, u: f32) -> u8 {
    let a = codec.alpha();
    let v = 2.0 * u / (a + (a * a + 4.0 * (1.0 - a) * u.abs()).sqrt());
    ((v + 1.0) * 128.0).clamp(0.0, 255.0) as u8
}

/// The smallest f16 that is not below a finite, non-negative number up to 65504.
pub(super) fn ceil_f16(value: f32) -> f16 {
    let near = f16::from_f32(value);
    if near.to_f32() >= value { near } else { f16::from_bits(near.to_bits() + 1) }
}

fn largest(weights: &[f32]) -> f32 {
    weights.iter().fold(0.0, |largest: f32, weight| largest.max(weight.abs()))
}

/// Checks lengths and that every number is usable, naming the first that is not.
pub(super) fn check_input(
    weights: &[f32],
    rows: usize,
    cols: usize,
    importance: Option<&[f32]>,
) -> Result<Grid, NestedError> {
    let grid = Grid::new(rows, cols).ok_or(NestedError::Shape { rows, cols })?;
    let length = |what, expected, found| Err(NestedError::Length { what, expected, found });
    if weights.len() != rows * cols {
        return length("weights", rows * cols, weights.len());
    }
    if let Some(at) = weights.iter().position(|weight| weight.is_nan() || weight.abs() > 65504.0) {
        let (row, col, value) = (at / cols, at % cols, weights[at]);
        return Err(if value.is_finite() {
            NestedError::RowTooLarge { row, magnitude: value.abs() }
        } else {
            NestedError::NotFinite { row, col, value }
        });
    }
    let importance = importance.unwrap_or_default();
    if !importance.is_empty() && importance.len() != cols {
        return length("importance", cols, importance.len());
    }
    match importance.iter().position(|value| !(value.is_finite() && *value >= 0.0)) {
        None => Ok(grid),
        Some(col) => Err(NestedError::Importance { col, value: importance[col] }),
    }
}
