//! From weights to codes: row scales, steps and tables by search, codes by rounding.

use half::f16;

use super::coder::{Coder, ceil_f16, largest};
use super::layout::Grid;
use super::{GROUP, NestedCodec, NestedError, QuantizedMatrix, TILE_ROWS, ZERO_STEP};

/// The code of padding and of zero groups: the cell just above zero.
const ZERO_CODE: u8 = 128;

/// The largest f16.
const LARGEST_SCALE: f32 = 65504.0;

/// Row scales that are tried, relative to the row's largest magnitude: an eighth of an octave, the
/// distance of two steps, in quarters, and a little clipping.
const ROW_PHASES: [f32; 5] = [1.0, 0.978_572, 1.021_897, 1.044_274, 1.067_141];

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
/// activation; none means that all are alike. The result depends on the arguments alone.
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
    let coders: Vec<Coder> = (0u8..)
        .zip(&codec.tables)
        .map(|(table, _)| Coder::new(codec, table, &options.level_weights))
        .collect();
    let rows_padded = grid.tiles * TILE_ROWS;
    let mut matrix = QuantizedMatrix {
        rows,
        cols,
        codes: vec![ZERO_CODE; rows_padded * grid.groups * GROUP],
        row_scales: vec![f16::ZERO; rows_padded],
        steps: vec![ZERO_STEP; rows_padded * grid.groups],
        tile_tables: vec![0; grid.tiles],
    };
    let mut tile_best = TileCodes::new(&grid);
    let mut tile_next = TileCodes::new(&grid);
    for (tile, tile_weights) in weights.chunks(TILE_ROWS * cols).enumerate() {
        let mut best = f32::INFINITY;
        for (table, coder) in (0u8..).zip(&coders) {
            let cost = tile_next.quantize(coder, tile_weights, cols, importance);
            if table == 0 || cost < best {
                best = cost;
                matrix.tile_tables[tile] = table;
                std::mem::swap(&mut tile_best, &mut tile_next);
            }
        }
        tile_best.store(tile, &mut matrix);
    }
    Ok(matrix)
}

/// One tile's part of a quantized matrix, while tables are compared.
struct TileCodes {
    groups: usize,
    codes: Vec<u8>,       // [16, groups * 32]
    row_scales: Vec<f16>, // [16]
    steps: Vec<u8>,       // [16, groups]
    row: RowCodes,
}

/// One row's codes, while row scales are compared.
#[derive(Clone)]
struct RowCodes {
    codes: Vec<u8>, // [groups * 32]
    steps: Vec<u8>, // [groups]
}

impl TileCodes {
    fn new(grid: &Grid) -> Self {
        let row = RowCodes {
            codes: vec![ZERO_CODE; grid.groups * GROUP],
            steps: vec![ZERO_STEP; grid.groups],
        };
        Self {
            groups: grid.groups,
            codes: vec![ZERO_CODE; TILE_ROWS * grid.groups * GROUP],
            row_scales: vec![f16::ZERO; TILE_ROWS],
            steps: vec![ZERO_STEP; TILE_ROWS * grid.groups],
            row,
        }
    }

    /// Codes up to 16 rows and returns their error.
    fn quantize(
        &mut self,
        coder: &Coder,
        weights: &[f32], // [rows <= 16, cols]
        cols: usize,
        importance: Option<&[f32]>,
    ) -> f32 {
        self.codes.fill(ZERO_CODE);
        self.row_scales.fill(f16::ZERO);
        self.steps.fill(ZERO_STEP);
        let mut total = 0.0;
        for (row, weights) in weights.chunks_exact(cols).enumerate() {
            let peak = largest(weights);
            if peak == 0.0 {
                continue;
            }
            let mut best = f32::INFINITY;
            for phase in ROW_PHASES {
                let scale = ceil_f16((peak * phase).min(LARGEST_SCALE));
                let cost = self.row.quantize(coder, scale.to_f32(), weights, importance);
                if cost < best {
                    best = cost;
                    self.row_scales[row] = scale;
                    self.codes[row * self.groups * GROUP..][..self.groups * GROUP]
                        .copy_from_slice(&self.row.codes);
                    self.steps[row * self.groups..][..self.groups].copy_from_slice(&self.row.steps);
                }
            }
            total += best;
        }
        total
    }

    fn store(&self, tile: usize, matrix: &mut QuantizedMatrix) {
        matrix.codes[tile * self.codes.len()..][..self.codes.len()].copy_from_slice(&self.codes);
        matrix.row_scales[tile * TILE_ROWS..][..TILE_ROWS].copy_from_slice(&self.row_scales);
        matrix.steps[tile * self.steps.len()..][..self.steps.len()].copy_from_slice(&self.steps);
    }
}

impl RowCodes {
    fn quantize(
        &mut self,
        coder: &Coder,
        row_scale: f32,
        weights: &[f32],
        importance: Option<&[f32]>,
    ) -> f32 {
        let mut total = 0.0;
        let codes = self.codes.chunks_exact_mut(GROUP).zip(&mut self.steps);
        for (group, (codes, step)) in codes.enumerate() {
            let from = group * GROUP;
            let to = weights.len().min(from + GROUP);
            let importance = importance.map(|importance| &importance[from..to]);
            let best = coder.quantize_group(row_scale, &weights[from..to], importance);
            codes.copy_from_slice(&best.codes);
            *step = best.step;
            total += best.cost;
        }
        total
    }
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
