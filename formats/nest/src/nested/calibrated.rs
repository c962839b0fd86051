//! Quantization of a matrix against the second moments of its inputs.

use super::chooser::Chooser;
use super::damped::dot;
use super::descent::{Effort, Tile, TileRows};
use super::{
    CalibratedOptions, DampedMoments, GROUP, NestedCodec, NestedError, QuantizeOptions,
    QuantizedMatrix, SecondMoments, TILE_ROWS, quantize_matrix, wide,
};
use crate::Invariant;
use crate::Level;

/// Calibration data of a matrix's inputs.
#[derive(Clone, Copy, Debug)]
pub struct InputCalibration<'a> {
    /// Second moments of the inputs.
    pub moments: &'a SecondMoments,
    /// The same moments with damping; must include the factor if codes start from feedback.
    pub damped: &'a DampedMoments,
}

/// Quantizes a matrix `[rows, cols]`, minimizing the error of its outputs at all levels.
///
/// Rows depend only on others of their tile, so callers may split a matrix at tile boundaries.
///
/// # Errors
/// [`NestedError`] as from [`quantize_matrix`], if the moments have another dimension, or if codes start from
/// feedback and the factor was not computed.
pub fn quantize_calibrated(
    weights: &[f32],
    rows: usize,
    cols: usize,
    codec: &NestedCodec,
    calibrated: &InputCalibration<'_>,
    options: &QuantizeOptions,
) -> Result<QuantizedMatrix, NestedError> {
    check_dim(cols, calibrated.moments.dim())?;
    check_dim(cols, calibrated.damped.dim())?;
    if options.calibrated.feedback && calibrated.damped.lower().is_none() {
        return Err(NestedError::NotFactored { dim: cols });
    }
    let importance = calibrated.moments.diagonal();
    let mut matrix = quantize_matrix(weights, rows, cols, codec, Some(&importance), options)?;
    let choosers: Vec<Chooser> = (0u8..)
        .zip(&codec.tables)
        .map(|(table, _)| Chooser::new(codec, table, &options.calibrated.level_weights))
        .collect();
    for (index, tile_weights) in weights.chunks(TILE_ROWS * cols).enumerate() {
        let chooser = choosers.get(usize::from(matrix.tile_tables[index]));
        let chooser = chooser.invariant("every tile was given a table of the codec")?;
        let tile = Tile { chooser, damped: calibrated.damped };
        let mut tile_rows = take_rows(&matrix, index, tile_weights, cols);
        wide::improve(&tile, &mut tile_rows, effort(&options.calibrated));
        put_rows(&mut matrix, index, &tile_rows);
    }
    Ok(matrix)
}

fn effort(options: &CalibratedOptions) -> Effort {
    let CalibratedOptions { feedback, sweeps, step_sweeps, .. } = *options;
    Effort { feedback, sweeps, step_sweeps }
}

/// Returns the rows of a tile with the codes that [`quantize_matrix`] chose.
fn take_rows(matrix: &QuantizedMatrix, tile: usize, weights: &[f32], cols: usize) -> TileRows {
    let groups = cols.div_ceil(GROUP);
    let mut rows = TileRows::new(groups);
    for (lane, weights) in weights.chunks_exact(cols).enumerate() {
        let row = tile * TILE_ROWS + lane;
        rows.row_scales[lane] = matrix.row_scales[row].to_f32();
        for (out, weight) in rows.weights.iter_mut().zip(weights) {
            out[lane] = *weight;
        }
        for (out, code) in rows.codes.iter_mut().zip(&matrix.codes[row * groups * GROUP..]) {
            out[lane] = *code;
        }
        for (out, step) in rows.steps.iter_mut().zip(&matrix.steps[row * groups..]) {
            out[lane] = *step;
        }
    }
    rows
}

fn put_rows(matrix: &mut QuantizedMatrix, tile: usize, rows: &TileRows) {
    let groups = rows.steps.len();
    let present = TILE_ROWS.min(matrix.rows.saturating_sub(tile * TILE_ROWS));
    for lane in 0..present {
        let row = tile * TILE_ROWS + lane;
        for (code, from) in matrix.codes[row * groups * GROUP..].iter_mut().zip(&rows.codes) {
            *code = from[lane];
        }
        for (step, from) in matrix.steps[row * groups..].iter_mut().zip(&rows.steps) {
            *step = from[lane];
        }
    }
}

/// Returns `tr(E H Eᵀ)` of the error `E` at each level: the squared output error summed over all inputs in
/// the moments.
///
/// # Errors
/// [`NestedError`] if lengths do not match.
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
        let table = matrix.tile_tables[row / TILE_ROWS];
        for (level, sum) in Level::ALL.into_iter().zip(&mut errors) {
            for (col, (error, weight)) in error.iter_mut().zip(weights).enumerate() {
                let cell = row * grid.groups + col / GROUP;
                let scale =
                    codec.steps.weight_scale(matrix.row_scales[row], level, matrix.steps[cell]);
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
