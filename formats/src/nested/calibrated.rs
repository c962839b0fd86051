//! Quantizing a matrix against the second moments of its inputs.

use super::feedback::dot;
use super::{
    FeedbackFactor, GROUP, NestedCodec, NestedError, QuantizeOptions, QuantizedMatrix,
    SecondMoments, quantize_matrix, weight_scale,
};
use crate::Level;

/// What calibration knows about a matrix's inputs.
#[derive(Clone, Copy, Debug)]
pub struct Calibrated<'a> {
    /// Their second moments.
    pub moments: &'a SecondMoments,
    /// The factor of the same moments, which matrices with the same inputs share.
    pub factor: &'a FeedbackFactor,
}

/// Codes a matrix `[rows, cols]` so that the error of its outputs is small at every level.
///
/// Rows do not depend on one another beyond their tile, so that callers may split a matrix between
/// tiles.
///
/// # Errors
/// [`NestedError`] as from [`quantize_matrix`], and if the moments have another dimension.
pub fn quantize_calibrated(
    weights: &[f32],
    rows: usize,
    cols: usize,
    codec: &NestedCodec,
    calibrated: &Calibrated<'_>,
    options: &QuantizeOptions,
) -> Result<QuantizedMatrix, NestedError> {
    check_dim(cols, calibrated.moments.dim())?;
    check_dim(cols, calibrated.factor.dim())?;
    let importance = calibrated.moments.diagonal();
    quantize_matrix(weights, rows, cols, codec, Some(&importance), options)
}

/// `tr(E H Eᵀ)` of the error `E` of every level: the squared error of the outputs over all inputs
/// that the moments have summed.
///
/// # Errors
/// [`NestedError`] if lengths do not fit together.
pub fn level_errors(
    weights: &[f32],
    rows: usize,
    cols: usize,
    matrix: &QuantizedMatrix,
    codec: &NestedCodec,
    moments: &SecondMoments,
) -> Result<[f64; 5], NestedError> {
    let grid = matrix.check()?;
    check_dim(cols, moments.dim())?;
    for (what, expected, found) in [
        ("rows", matrix.rows, rows),
        ("columns", matrix.cols, cols),
        ("weights", matrix.rows * matrix.cols, weights.len()),
    ] {
        if expected != found {
            return Err(NestedError::Length { what, expected, found });
        }
    }
    let mut errors = [0.0; 5];
    let mut error = vec![0.0; cols];
    for (row, weights) in weights.chunks_exact(cols).enumerate() {
        let table = matrix.tile_tables[row / super::TILE_ROWS];
        for (level, sum) in Level::ALL.into_iter().zip(&mut errors) {
            for (col, (error, weight)) in error.iter_mut().zip(weights).enumerate() {
                let cell = row * grid.groups + col / GROUP;
                let scale = weight_scale(matrix.row_scales[row], level, matrix.steps[cell]);
                let code = matrix.codes[cell * GROUP + col % GROUP];
                *error = weight - scale * f32::from(codec.value(level, table, code));
            }
            let products = moments.values().chunks_exact(cols).map(|row| dot(row, &error));
            *sum +=
                error.iter().zip(products).map(|(e, p)| f64::from(*e) * f64::from(p)).sum::<f64>();
        }
    }
    Ok(errors)
}

fn check_dim(expected: usize, found: usize) -> Result<(), NestedError> {
    if expected == found {
        return Ok(());
    }
    Err(NestedError::Length { what: "second moments of a matrix's columns", expected, found })
}
