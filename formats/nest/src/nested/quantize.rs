//! Quantization of weights: row scales, steps and tables by search, codes by rounding.

use crate::Invariant;
use crate::memory::{try_filled, try_zeroed};
use half::f16;

use super::coder::{Coder, GroupWeights, ceil_f16};
use super::layout::Grid;
use super::{
    GROUP, MAX_TABLES, NestedCodec, NestedError, QuantizedMatrix, STEPS, ScaleSteps, TILE_ROWS,
    ZERO_STEP,
};

/// Code of padding and of zero groups: the cell just above zero.
const ZERO_CODE: u8 = 128;

/// Largest finite f16.
const LARGEST_SCALE: f32 = 65504.0;

/// Row scales to try, relative to the row's largest magnitude. They cover an eighth of an octave, the
/// distance of two steps, and clip slightly.
const ROW_PHASES: [f32; 8] = [1.0, 0.97, 0.98, 0.99, 1.012, 1.025, 1.04, 1.058];

/// Options for fitting codecs and choosing codes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct QuantizeOptions {
    /// Weights of the errors of levels 2, 3, 4, 6 and 8, each relative to its typical size.
    ///
    /// The default favours level 3, where the margin over other codes is smallest.
    pub level_weights: [f32; 5],
    /// Number of tables in a fitted codec, 1..=16.
    pub tables: usize,
    /// Options of the passes that [`super::quantize_calibrated`] runs after the scale search.
    pub calibrated: CalibratedOptions,
}

impl Default for QuantizeOptions {
    fn default() -> Self {
        Self {
            level_weights: [2.0, 3.0, 1.5, 0.9, 0.7],
            tables: 1,
            calibrated: CalibratedOptions::default(),
        }
    }
}

/// Options for choosing codes against second moments.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CalibratedOptions {
    /// Weights of the output errors of levels 2, 3, 4, 6 and 8, each relative to its typical size.
    pub level_weights: [f32; 5],
    /// True if codes start from error feedback, false if from rounding.
    pub feedback: bool,
    /// Number of coordinate descent sweeps.
    pub sweeps: u32,
    /// Number of initial sweeps that also try the neighbouring steps of each group.
    pub step_sweeps: u32,
}

impl Default for CalibratedOptions {
    fn default() -> Self {
        Self {
            level_weights: [6.0, 4.0, 1.5, 1.0, 1.0],
            feedback: false,
            sweeps: 6,
            step_sweeps: 2,
        }
    }
}

impl QuantizeOptions {
    pub(super) fn check(&self) -> Result<(), NestedError> {
        if !(1..=MAX_TABLES).contains(&self.tables) {
            let found = i64::try_from(self.tables).unwrap_or(i64::MAX);
            return Err(NestedError::Codec { what: "number of tables", found, expected: "1..=16" });
        }
        for weights in [self.level_weights, self.calibrated.level_weights] {
            let valid = weights.iter().all(|weight| (0.0..=1e6).contains(weight));
            if !valid || weights.iter().all(|weight| *weight == 0.0) {
                return Err(NestedError::LevelWeights { weights });
            }
        }
        Ok(())
    }
}

/// Name of a matrix's codes in error messages.
pub(super) const CODES: &str = "codes of a matrix";

/// Quantizes a matrix `[rows, cols]` with a fitted codec.
///
/// `importance`, `[cols]`, weights the squared error of each column, for example with the mean square of its
/// activation; `None` weights all columns equally. The result depends only on the arguments.
///
/// ```
/// use nestling_formats::nested::{CodecFitter, QuantizeOptions, quantize_matrix};
///
/// let (rows, cols) = (16, 64);
/// let weights: Vec<f32> = (0u16..16 * 64).map(|n| (f32::from(n) * 0.7).sin()).collect();
/// let options = QuantizeOptions::default();
/// let mut fitter = CodecFitter::new(&options);
/// fitter.add(&weights, rows, cols, None)?;
/// let codec = fitter.finish()?;
/// let matrix = quantize_matrix(&weights, rows, cols, &codec, None, &options)?;
/// assert_eq!(matrix.codes.len(), rows * cols); // one byte per weight
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn quantize_matrix(
    weights: &[f32],
    rows: usize,
    cols: usize,
    codec: &NestedCodec,
    importance: Option<&[f32]>,
    options: &QuantizeOptions,
) -> Result<QuantizedMatrix, NestedError> {
    let grid = check_input(weights, rows, cols, importance)?;
    codec.check()?;
    check_searched(codec)?;
    options.check()?;
    let coders = Coder::all(codec, &options.level_weights);
    let rows_padded = grid.tiles * TILE_ROWS;
    let mut matrix = QuantizedMatrix {
        rows,
        cols,
        codes: try_filled(CODES, ZERO_CODE, rows_padded * grid.groups * GROUP)?,
        row_scales: try_filled(CODES, f16::ZERO, rows_padded)?,
        steps: try_filled(CODES, ZERO_STEP, rows_padded * grid.groups)?,
        tile_tables: try_zeroed(CODES, grid.tiles)?,
    };
    for (tile, rows) in weights.chunks(TILE_ROWS * cols).enumerate() {
        let tile_weights = tile_groups(rows, cols, importance);
        let (table, scales) = TileScales::search_tables(&coders, &tile_weights, grid.groups);
        let number = u8::try_from(table).invariant("a codec has at most 256 tables")?;
        matrix.tile_tables[tile] = number;
        scales.store(&coders[table], tile, &tile_weights, &mut matrix);
    }
    Ok(matrix)
}

/// Returns the groups of up to 16 rows `[rows, cols]`, row by row.
fn tile_groups(rows: &[f32], cols: usize, importance: Option<&[f32]>) -> Vec<GroupWeights> {
    rows.chunks_exact(cols)
        .flat_map(|row| row.chunks(GROUP).enumerate())
        .map(|(group, weights)| {
            let from = group * GROUP;
            let importance = importance.map(|all| &all[from..from + weights.len()]);
            GroupWeights::new(weights, importance)
        })
        .collect()
}

struct TileScales {
    cost: f32,
    row_scales: [f16; TILE_ROWS],
    steps: Vec<u8>, // [16, groups]
}

impl TileScales {
    /// Returns the table with the smallest joint error, and the scales for it.
    ///
    /// Tables are compared at the scales of the first one, which is the most used. Scales are then searched
    /// again for the best table.
    fn search_tables(coders: &[Coder], tile: &[GroupWeights], groups: usize) -> (usize, Self) {
        let first = Self::search(&coders[0], tile, groups);
        let mut best = (f32::INFINITY, 0);
        for (table, coder) in coders.iter().enumerate().filter(|_| coders.len() > 1) {
            let cost = first.error(coder, tile);
            if cost < best.0 {
                best = (cost, table);
            }
        }
        if best.1 > 0 {
            let second = Self::search(&coders[best.1], tile, groups);
            if second.cost < first.cost {
                return (best.1, second);
            }
        }
        (0, first)
    }

    /// Returns the joint error of the tile at these scales with another table.
    fn error(&self, coder: &Coder, tile: &[GroupWeights]) -> f32 {
        let groups = self.steps.len() / TILE_ROWS;
        let errors = tile.iter().zip(&self.steps).enumerate().map(|(cell, (group, step))| {
            let scale = self.row_scales[cell / groups].to_f32() * STEPS[usize::from(*step)];
            coder.scaled_error(scale, group)
        });
        errors.sum()
    }

    /// Finds the row scales and steps with the smallest joint error.
    fn search(coder: &Coder, tile: &[GroupWeights], groups: usize) -> Self {
        let mut scales = Self {
            cost: 0.0,
            row_scales: [f16::ZERO; TILE_ROWS],
            steps: vec![ZERO_STEP; TILE_ROWS * groups],
        };
        let mut steps = vec![ZERO_STEP; groups];
        for (row, weights) in tile.chunks_exact(groups).enumerate() {
            let peak = weights.iter().fold(0.0f32, |peak, group| peak.max(group.peak()));
            if peak == 0.0 {
                continue;
            }
            let mut best = f32::INFINITY;
            for phase in ROW_PHASES {
                let scale = ceil_f16((peak * phase).min(LARGEST_SCALE));
                let mut cost = 0.0;
                for (step, group) in steps.iter_mut().zip(weights) {
                    let found = coder.search_step(scale.to_f32(), group);
                    *step = found.0;
                    cost += found.1;
                }
                if cost < best {
                    best = cost;
                    scales.row_scales[row] = scale;
                    scales.steps[row * groups..][..groups].copy_from_slice(&steps);
                }
            }
            scales.cost += best;
        }
        scales
    }

    fn store(
        &self,
        coder: &Coder,
        tile: usize,
        weights: &[GroupWeights],
        matrix: &mut QuantizedMatrix,
    ) {
        matrix.row_scales[tile * TILE_ROWS..][..TILE_ROWS].copy_from_slice(&self.row_scales);
        matrix.steps[tile * self.steps.len()..][..self.steps.len()].copy_from_slice(&self.steps);
        let groups = self.steps.len() / TILE_ROWS;
        let codes = matrix.codes[tile * self.steps.len() * GROUP..].chunks_exact_mut(GROUP);
        for (cell, (codes, group)) in codes.zip(weights).enumerate() {
            let step = STEPS[usize::from(self.steps[cell])];
            let scale = self.row_scales[cell / groups].to_f32() * step;
            if scale > 0.0 {
                codes.copy_from_slice(&coder.encode(scale, group));
            }
        }
    }
}

/// Checks that the codec has steps of an eighth of an octave. Whole octaves are for weights with given
/// scales, which are not searched.
fn check_searched(codec: &NestedCodec) -> Result<(), NestedError> {
    match codec.steps {
        ScaleSteps::Eighths => Ok(()),
        ScaleSteps::Octaves => Err(NestedError::Codec {
            what: "scale steps of a search",
            found: codec.steps.to_byte().into(),
            expected: "0",
        }),
    }
}

/// Checks all lengths and values; the error names the first invalid one.
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
    if let Some(at) =
        weights.iter().position(|weight| weight.is_nan() || weight.abs() > LARGEST_SCALE)
    {
        let (row, col, value) = (at / cols, at % cols, weights[at]);
        return Err(if value.is_finite() {
            NestedError::RowTooLarge { row, magnitude: value.abs() }
        } else {
            NestedError::NotFinite { row, col, value }
        });
    }
    let Some(importance) = importance else { return Ok(grid) };
    if importance.len() != cols {
        return length("importance", cols, importance.len());
    }
    match importance.iter().position(|value| !value.is_finite() || *value < 0.0) {
        None => Ok(grid),
        Some(col) => Err(NestedError::Importance { col, value: importance[col] }),
    }
}
