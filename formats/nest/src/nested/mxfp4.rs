//! Weights that are MXFP4 already: kept exactly at level 4, with levels 2 and 3 fitted under it.
//!
//! A block of 32 weights has one power of two and sixteen possible values (OCP Microscaling Formats
//! 1.0, E2M1 elements with E8M0 scales). Its elements in ascending order are the leading four bits of
//! the code, its power of two is a step of whole octaves below the row's largest. What is left to
//! choose are the values of shorter prefixes: the centroids of what shares them.

use crate::Invariant;
use crate::memory::{try_filled, try_zeroed};
use half::f16;

use super::layout::Grid;
use super::quantize::{CODES, check_input};
use super::{
    GROUP, InputTransform, MAX_TABLES, NestedCodec, NestedError, NestedTables, QuantizeOptions,
    QuantizedMatrix, ScaleSteps, TILE_ROWS, ZERO_STEP,
};

/// The magnitudes of an element by its three low bits, in halves.
const HALVES: [u8; 8] = [0, 1, 2, 3, 4, 6, 8, 12];

/// The values of the prefixes of level 4 in units of 1/16: all elements in ascending order.
const ASCENDING: [i8; 16] = [-96, -64, -48, -32, -24, -16, -8, 0, 0, 8, 16, 24, 32, 48, 64, 96];

/// Exponents that an fp16 row scale can have.
const ROW_EXPONENTS: std::ops::RangeInclusive<i32> = -24..=15;

/// The prefix in the middle, which decodes to zero.
const ZERO_CODE: u8 = 128;

/// How often tiles and tables are fitted to one another.
const ROUNDS: usize = 6;

/// The weights of one block of MXFP4, without its scale.
pub type Mxfp4Block = [u8; GROUP / 2];

/// The weights of a block: value times 2^(scale - 127), exactly; NaN where the scale is 255.
///
/// Each byte holds two elements that follow each other, the first in its low half.
pub fn decode_mxfp4(block: &Mxfp4Block, scale: u8, out: &mut [f32; GROUP]) {
    let scale = match scale {
        0 => f32::from_bits(1 << 22),
        u8::MAX => f32::NAN,
        _ => f32::from_bits(u32::from(scale) << 23),
    };
    for (out, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(block) {
        *out = [byte & 15, byte >> 4].map(|element| {
            let value = 0.5 * f32::from(HALVES[usize::from(element & 7)]);
            scale * if element & 8 == 0 { value } else { -value }
        });
    }
}

/// Weights of a block by their place among [`ASCENDING`], and the exponent that they share; none for
/// the exponent where all are zero.
///
/// Of the exponents that suit a block it is the least, so that the largest weight is a 4 or a 6
/// and blocks of all sources look alike. None if no exponent suits.
fn places(weights: &[f32]) -> Option<([u8; GROUP], Option<i32>)> {
    let mut places = [ZERO_CODE >> 4; GROUP];
    let peak = weights.iter().fold(0.0f32, |peak, weight| peak.max(weight.abs()));
    if peak == 0.0 {
        return Some((places, None));
    }
    let exponent = libm::ilogb(f64::from(peak)) - 2;
    let scale = libm::exp2(f64::from(1 - exponent));
    for (place, weight) in places.iter_mut().zip(weights) {
        let halves = f64::from(*weight) * scale;
        let magnitude = HALVES.iter().position(|known| f64::from(*known) == halves.abs())?;
        let magnitude = u8::try_from(magnitude).ok()?;
        // Zeros keep their sign: it says on which side of zero they were rounded.
        *place = if weight.is_sign_negative() { 7 - magnitude } else { 8 + magnitude };
    }
    Some((places, Some(exponent)))
}

/// [`places`] of block `index` of a matrix.
fn block_places(
    weights: &[f32],
    cols: usize,
    index: usize,
) -> Result<([u8; GROUP], Option<i32>), NestedError> {
    let block = &weights[index * GROUP..][..GROUP];
    let (row, col) = (index * GROUP / cols, index * GROUP % cols);
    places(block).ok_or(NestedError::NotMxfp4 { row, col })
}

/// Checks what [`check_input`] does, and that blocks are whole.
fn check_blocks(weights: &[f32], rows: usize, cols: usize) -> Result<Grid, NestedError> {
    let grid = check_input(weights, rows, cols, None)?;
    if cols.is_multiple_of(GROUP) { Ok(grid) } else { Err(NestedError::Shape { rows, cols }) }
}

/// Codes a matrix `[rows, cols]` whose groups of 32 weights are blocks of MXFP4, wherever they come
/// from: at level 4 it decodes to the same weights.
///
/// Blocks more than 30 octaves below the largest of their row, or below 2^-54, become zero, and a
/// negative zero a positive one.
///
/// # Errors
/// [`NestedError`] if a weight is none of MXFP4 or above 65504, rows are no whole blocks, or the
/// codec is not one of [`Mxfp4Fitter`].
pub fn quantize_mxfp4(
    weights: &[f32],
    rows: usize,
    cols: usize,
    codec: &NestedCodec,
    options: &QuantizeOptions,
) -> Result<QuantizedMatrix, NestedError> {
    let grid = check_blocks(weights, rows, cols)?;
    codec.check()?;
    if codec.steps != ScaleSteps::Octaves || codec.tables.iter().any(|t| t.t4 != ASCENDING) {
        let (what, expected) = ("codec of MXFP4 weights", "octaves and the values of E2M1");
        return Err(NestedError::Codec { what, found: codec.steps.to_byte().into(), expected });
    }
    let rows_padded = grid.tiles * TILE_ROWS;
    let mut matrix = QuantizedMatrix {
        rows,
        cols,
        codes: try_filled(CODES, ZERO_CODE, rows_padded * cols)?,
        row_scales: try_filled(CODES, f16::ZERO, rows_padded)?,
        steps: try_filled(CODES, ZERO_STEP, rows_padded * grid.groups)?,
        tile_tables: try_zeroed(CODES, grid.tiles)?,
    };
    let mut exponents = vec![None; grid.groups];
    for row in 0..rows {
        for (group, exponent) in exponents.iter_mut().enumerate() {
            let block = row * grid.groups + group;
            let (places, found) = block_places(weights, cols, block)?;
            *exponent = found;
            let codes = &mut matrix.codes[block * GROUP..][..GROUP];
            codes.iter_mut().zip(places).for_each(|(code, place)| *code = place << 4);
        }
        let steps = &mut matrix.steps[row * grid.groups..][..grid.groups];
        matrix.row_scales[row] = row_scale(row, &exponents, steps)?;
    }
    if codec.tables.len() > 1 {
        let cells = TileCells::of_matrix(weights, cols, None)?;
        for (table, cells) in matrix.tile_tables.iter_mut().zip(&cells) {
            let best = u8::try_from(cells.best(&codec.tables, &options.level_weights));
            *table = best.invariant("a codec has at most 256 tables")?;
        }
    }
    Ok(matrix)
}

/// The scale of one row, and the steps of its blocks.
fn row_scale(row: usize, exponents: &[Option<i32>], steps: &mut [u8]) -> Result<f16, NestedError> {
    let Some(largest) = exponents.iter().flatten().copied().max() else { return Ok(f16::ZERO) };
    if largest > *ROW_EXPONENTS.end() {
        let magnitude = libm::exp2f(largest as f32);
        return Err(NestedError::RowTooLarge { row, magnitude });
    }
    let top = largest.max(*ROW_EXPONENTS.start());
    for (step, exponent) in steps.iter_mut().zip(exponents) {
        let below = exponent.and_then(|exponent| u8::try_from(top - exponent).ok());
        *step = below.filter(|below| *below < ZERO_STEP).unwrap_or(ZERO_STEP);
    }
    Ok(f16::from_f32(libm::exp2f(top as f32)))
}

/// How much the weights of one tile count, by their prefix.
#[derive(Clone, Copy, Debug, Default)]
struct TileCells([f64; 16]);

impl TileCells {
    /// The cells of all tiles of a matrix whose columns count by `importance`.
    fn of_matrix(
        weights: &[f32],
        cols: usize,
        importance: Option<&[f32]>,
    ) -> Result<Vec<Self>, NestedError> {
        let mut tiles = vec![Self::default(); (weights.len() / cols).div_ceil(TILE_ROWS)];
        for block in 0..weights.len() / GROUP {
            let (places, exponent) = block_places(weights, cols, block)?;
            let Some(exponent) = exponent else { continue };
            let cells = &mut tiles[block * GROUP / cols / TILE_ROWS].0;
            let square = libm::exp2(f64::from(2 * exponent));
            let importance = importance.map(|all| &all[block * GROUP % cols..][..GROUP]);
            for (k, place) in places.into_iter().enumerate() {
                let factor = importance.map_or(1.0, |importance| f64::from(importance[k]));
                cells[usize::from(place)] += factor * square;
            }
        }
        Ok(tiles)
    }

    fn add(&mut self, other: &Self) {
        for (sum, cell) in self.0.iter_mut().zip(&other.0) {
            *sum += cell;
        }
    }

    /// The weighted error of levels 2 and 3 with a table.
    fn error(&self, table: &NestedTables, level_weights: &[f32; 5]) -> f64 {
        let square = |from: i8, to: i8| f64::from(i32::from(from) - i32::from(to)).powi(2);
        let (two, three) = (16.0 * level_weights[0], 64.0 * level_weights[1]);
        let errors = self.0.iter().zip(ASCENDING).enumerate().map(|(place, (weight, value))| {
            let at_two = f64::from(two) * square(value, table.t2[place / 4]);
            weight * (at_two + f64::from(three) * square(value, table.t3[place / 2]))
        });
        errors.sum()
    }

    /// The table with the least error, the first of equals.
    fn best(&self, tables: &[NestedTables], level_weights: &[f32; 5]) -> usize {
        let mut best = (f64::INFINITY, 0);
        for (table, values) in tables.iter().enumerate() {
            let error = self.error(values, level_weights);
            if error < best.0 {
                best = (error, table);
            }
        }
        best.1
    }

    /// The centroids of all prefixes; where nothing has a prefix, the middle of what could.
    fn tables(&self) -> NestedTables {
        let centroid = |width: usize, at: usize| {
            let cells = at * width..(at + 1) * width;
            let values = ASCENDING[cells.clone()].iter().map(|value| f64::from(*value));
            let weights = &self.0[cells];
            let total: f64 = weights.iter().sum();
            let mean = match total > 0.0 {
                true => values.zip(weights).map(|(v, w)| v * w).sum::<f64>() / total,
                false => values.sum::<f64>() / width as f64,
            };
            libm::round(mean) as i8
        };
        NestedTables {
            t2: std::array::from_fn(|at| centroid(4, at)),
            t3: std::array::from_fn(|at| centroid(2, at)),
            t4: ASCENDING,
        }
    }
}

/// Fits the codec that MXFP4 matrices of a layer and kind share.
#[derive(Clone, Debug)]
pub struct Mxfp4Fitter {
    tiles: Vec<TileCells>,
    options: QuantizeOptions,
}

impl Mxfp4Fitter {
    /// A fitter of a codec with as many tables as the options say.
    pub fn new(options: &QuantizeOptions) -> Self {
        Self { tiles: Vec::new(), options: options.clone() }
    }

    /// Adds rows `[rows, cols]` whose columns count by `importance`, `[cols]`.
    ///
    /// # Errors
    /// As [`quantize_mxfp4`], and for an importance that [`super::quantize_matrix`] would refuse.
    pub fn add(
        &mut self,
        weights: &[f32],
        rows: usize,
        cols: usize,
        importance: Option<&[f32]>,
    ) -> Result<(), NestedError> {
        check_blocks(weights, rows, cols)?;
        check_input(weights, rows, cols, importance)?;
        self.tiles.extend(TileCells::of_matrix(weights, cols, importance)?);
        Ok(())
    }

    /// Takes what another fitter of the same codec was given.
    pub fn absorb(&mut self, other: Self) {
        self.tiles.extend(other.tiles);
    }

    /// The codec: tables that differ in levels 2 and 3, each the centroids of the tiles that it
    /// serves best.
    ///
    /// # Errors
    /// [`NestedError::Codec`] if the options ask for no tables or too many.
    pub fn finish(&self) -> Result<NestedCodec, NestedError> {
        self.options.check()?;
        let mut all = TileCells::default();
        self.tiles.iter().for_each(|tile| all.add(tile));
        let mut tables = vec![all.tables()];
        while tables.len() < self.options.tables.min(MAX_TABLES) {
            tables.push(self.worst(&tables).tables());
            self.refit(&mut tables);
        }
        for _ in 0..ROUNDS {
            self.refit(&mut tables);
        }
        Ok(NestedCodec {
            // No weight has a level that these serve.
            alpha_a: 1 << 14,
            alpha_b: 0,
            beta_q: 16,
            tables,
            inputs: InputTransform::None,
            steps: ScaleSteps::Octaves,
        })
    }

    /// The tile that would gain most by a table of its own.
    fn worst(&self, tables: &[NestedTables]) -> TileCells {
        let weights = &self.options.level_weights;
        let mut worst = (f64::NEG_INFINITY, TileCells::default());
        for tile in &self.tiles {
            let now = tile.error(&tables[tile.best(tables, weights)], weights);
            let gain = now - tile.error(&tile.tables(), weights);
            if gain > worst.0 {
                worst = (gain, *tile);
            }
        }
        worst.1
    }

    /// Makes every table the centroids of the tiles that choose it.
    fn refit(&self, tables: &mut [NestedTables]) {
        let mut sums = vec![TileCells::default(); tables.len()];
        for tile in &self.tiles {
            sums[tile.best(tables, &self.options.level_weights)].add(tile);
        }
        for (table, sum) in tables.iter_mut().zip(&sums) {
            if sum.0.iter().any(|cell| *cell > 0.0) {
                *table = sum.tables();
            }
        }
    }
}
