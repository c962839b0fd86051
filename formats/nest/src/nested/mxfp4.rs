//! Exact nested codes for MXFP4 weights: level 4 is lossless, levels 2 and 3 are fitted below it.
//!
//! A block of 32 weights has one power of two and sixteen possible values (OCP Microscaling Formats 1.0, E2M1
//! elements with E8M0 scales). The rank of an element in ascending order gives the leading four bits of its
//! code. The power of two becomes a scale step of whole octaves below the row's largest. The only free choice
//! is the values of shorter prefixes, which are the centroids of the elements that share them.

use crate::Invariant;
use crate::memory::{try_filled, try_zeroed};
use half::f16;

use super::layout::Grid;
use super::quantize::{CODES, check_input};
use super::{
    GROUP, InputTransform, MAX_TABLES, NestedCodec, NestedError, NestedTables, QuantizeOptions,
    QuantizedMatrix, ScaleSteps, TILE_ROWS, ZERO_STEP,
};

/// Magnitudes of the E2M1 elements by their three low bits, in halves.
const HALVES: [u8; 8] = [0, 1, 2, 3, 4, 6, 8, 12];

/// Values of the level-4 prefixes in units of 1/16: all elements in ascending order.
const ASCENDING: [i8; 16] = [-96, -64, -48, -32, -24, -16, -8, 0, 0, 8, 16, 24, 32, 48, 64, 96];

/// Exponents that an fp16 row scale can represent.
const ROW_EXPONENTS: std::ops::RangeInclusive<i32> = -24..=15;

/// Code of zero: the middle prefix.
const ZERO_CODE: u8 = 128;

/// Rounds of alternately assigning tiles and fitting tables.
const ROUNDS: usize = 6;

/// The elements of one MXFP4 block, without its scale.
pub type Mxfp4Block = [u8; GROUP / 2];

/// Decodes a block exactly: element value times 2^(scale - 127), or NaN if the scale is 255.
///
/// A byte holds two consecutive elements, the first in its low half.
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

/// Returns the elements' ranks in [`ASCENDING`] and the shared exponent of a block. The exponent is `None` if
/// all weights are zero.
///
/// The smallest suitable exponent is chosen: the largest weight becomes a 4 or a 6, so blocks from all
/// sources look alike. Returns `None` if no exponent fits.
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
        // Zeros keep their sign, which shows from which side they were rounded to zero.
        *place = if weight.is_sign_negative() { 7 - magnitude } else { 8 + magnitude };
    }
    Some((places, Some(exponent)))
}

/// Returns [`places`] of block `index` of a matrix.
fn block_places(
    weights: &[f32],
    cols: usize,
    index: usize,
) -> Result<([u8; GROUP], Option<i32>), NestedError> {
    let block = &weights[index * GROUP..][..GROUP];
    let (row, col) = (index * GROUP / cols, index * GROUP % cols);
    places(block).ok_or(NestedError::NotMxfp4 { row, col })
}

/// Checks the input as [`check_input`] does, and that rows consist of whole blocks.
fn check_blocks(weights: &[f32], rows: usize, cols: usize) -> Result<Grid, NestedError> {
    let grid = check_input(weights, rows, cols, None)?;
    if cols.is_multiple_of(GROUP) { Ok(grid) } else { Err(NestedError::Shape { rows, cols }) }
}

/// Quantizes a matrix `[rows, cols]` whose groups of 32 weights are MXFP4 blocks. Level 4 decodes to exactly
/// the same weights.
///
/// Exceptions: blocks more than 30 octaves below the largest of their row, or below 2^-54, become zero, and
/// negative zeros become positive.
///
/// # Errors
/// [`NestedError`] if a weight is not MXFP4 or is above 65504, if rows are not whole blocks, or if the codec
/// is not from [`Mxfp4Fitter`].
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

/// Returns the scale of a row and fills in the steps of its blocks.
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

/// Total weight of a tile's elements by level-4 prefix.
#[derive(Clone, Copy, Debug, Default)]
struct TileCells([f64; 16]);

impl TileCells {
    /// Returns the cells of all tiles of a matrix; columns are weighted by `importance`.
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

    /// Returns the weighted error of levels 2 and 3 with a table.
    fn error(&self, table: &NestedTables, level_weights: &[f32; 5]) -> f64 {
        let square = |from: i8, to: i8| f64::from(i32::from(from) - i32::from(to)).powi(2);
        let (two, three) = (16.0 * level_weights[0], 64.0 * level_weights[1]);
        let errors = self.0.iter().zip(ASCENDING).enumerate().map(|(place, (weight, value))| {
            let at_two = f64::from(two) * square(value, table.t2[place / 4]);
            weight * (at_two + f64::from(three) * square(value, table.t3[place / 2]))
        });
        errors.sum()
    }

    /// Returns the table with the smallest error, the first if equal.
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

    /// Returns the centroids of all prefixes; an unused prefix gets the mean of its possible values.
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

/// Fits the codec shared by the MXFP4 matrices of a layer and kind.
#[derive(Clone, Debug)]
pub struct Mxfp4Fitter {
    tiles: Vec<TileCells>,
    options: QuantizeOptions,
}

impl Mxfp4Fitter {
    /// Creates a fitter for a codec with `options.tables` tables.
    pub fn new(options: &QuantizeOptions) -> Self {
        Self { tiles: Vec::new(), options: options.clone() }
    }

    /// Adds rows `[rows, cols]` whose columns are weighted by `importance`, `[cols]`.
    ///
    /// # Errors
    /// The errors of [`quantize_mxfp4`], and an importance that [`super::quantize_matrix`] rejects.
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

    /// Adds the data of another fitter of the same codec.
    pub fn absorb(&mut self, other: Self) {
        self.tiles.extend(other.tiles);
    }

    /// Returns the fitted codec. Its tables differ in levels 2 and 3; each holds the centroids of the tiles
    /// assigned to it.
    ///
    /// # Errors
    /// [`NestedError::Codec`] if the options request zero tables or too many.
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
            // Unused: the weights have no level above 4.
            alpha_a: 1 << 14,
            alpha_b: 0,
            beta_q: 16,
            tables,
            inputs: InputTransform::None,
            steps: ScaleSteps::Octaves,
        })
    }

    /// Returns the tile that would gain most from a separate table.
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

    /// Sets each table to the centroids of its tiles.
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
