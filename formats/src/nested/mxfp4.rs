//! Weights that are MXFP4 already: kept exactly at level 4, with levels 2 and 3 fitted under it.
//!
//! A block of 32 weights has one power of two and sixteen possible values (OCP Microscaling Formats
//! 1.0, E2M1 elements with E8M0 scales). Its elements in ascending order are the leading four bits of
//! the code, its power of two is a step of whole octaves below the row's largest. What is left to
//! choose are the values of shorter prefixes: the centroids of what shares them.

use half::f16;

use super::layout::Grid;
use super::{
    GROUP, InputTransform, MAX_TABLES, NestedCodec, NestedError, NestedTables, QuantizeOptions,
    QuantizedMatrix, ScaleSteps, TILE_ROWS, ZERO_STEP,
};

/// Bytes of a block of 32 elements, without its scale.
pub const MXFP4_BLOCK_BYTES: usize = GROUP / 2;

/// The values of the sixteen elements.
pub const MXFP4_VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The values in ascending order, in units of 1/16: what the prefixes of level 4 decode to.
const ASCENDING: [i8; 16] = [-96, -64, -48, -32, -24, -16, -8, 0, 0, 8, 16, 24, 32, 48, 64, 96];

/// The bias of a block's exponent; 255 stands for NaN.
const BIAS: i32 = 127;
const NAN: u8 = 255;

/// Exponents that an fp16 row scale can have.
const ROW_EXPONENTS: std::ops::RangeInclusive<i32> = -24..=15;

/// The prefix in the middle, which decodes to zero.
const ZERO_CODE: u8 = 128;

/// How often tiles and tables are fitted to one another.
const ROUNDS: usize = 6;

/// Rows of a matrix in MXFP4.
#[derive(Clone, Copy, Debug)]
pub struct Mxfp4Rows<'a> {
    /// Elements, one to a byte, `[rows, cols]`; `cols` is a multiple of 32.
    pub elements: &'a [u8],
    /// Biased exponents of the blocks, `[rows, cols / 32]`.
    pub exponents: &'a [u8],
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}

impl Mxfp4Rows<'_> {
    /// Checks lengths, and that no weight is NaN or beyond what an fp16 row scale reaches.
    fn check(&self) -> Result<Grid, NestedError> {
        let (rows, cols) = (self.rows, self.cols);
        let grid = Grid::new(rows, cols).filter(|_| cols.is_multiple_of(GROUP));
        let grid = grid.ok_or(NestedError::Shape { rows, cols })?;
        for (what, expected, found) in [
            ("elements", rows * cols, self.elements.len()),
            ("exponents", rows * grid.groups, self.exponents.len()),
        ] {
            if expected != found {
                return Err(NestedError::Length { what, expected, found });
            }
        }
        let Some(at) = self.exponents.iter().position(|exponent| *exponent == NAN) else {
            return Ok(grid);
        };
        let (row, col) = (at / grid.groups, at % grid.groups * GROUP);
        Err(NestedError::NotFinite { row, col, value: f32::NAN })
    }

    /// The weights as floats, `[rows, cols]`, exactly.
    ///
    /// # Errors
    /// [`NestedError`] if lengths do not fit together or a block's scale is NaN.
    pub fn dequantize(&self, out: &mut [f32]) -> Result<(), NestedError> {
        self.check()?;
        if out.len() != self.elements.len() {
            let (expected, found) = (self.elements.len(), out.len());
            return Err(NestedError::Length { what: "weights", expected, found });
        }
        let blocks = self.elements.chunks_exact(GROUP).zip(self.exponents);
        for (out, (elements, exponent)) in out.chunks_exact_mut(GROUP).zip(blocks) {
            let scale = power_of_two(*exponent);
            for (out, element) in out.iter_mut().zip(elements) {
                *out = MXFP4_VALUES[usize::from(element & 15)] * scale;
            }
        }
        Ok(())
    }

    /// The unbiased exponent of a block; none where all its weights are zero.
    fn exponent(&self, block: usize) -> Option<i32> {
        let elements = &self.elements[block * GROUP..][..GROUP];
        let nonzero = elements.iter().any(|element| element & 7 != 0);
        nonzero.then(|| i32::from(self.exponents[block]) - BIAS)
    }
}

/// Two to the power of a biased exponent below 255.
fn power_of_two(exponent: u8) -> f32 {
    match exponent {
        0 => f32::from_bits(1 << 22),
        _ => f32::from_bits(u32::from(exponent) << 23),
    }
}

/// The leading four bits of an element's code: its place in ascending order.
const fn prefix(element: u8) -> u8 {
    let magnitude = element & 7;
    if element & 8 == 0 { 8 + magnitude } else { 7 - magnitude }
}

/// Codes a matrix that is MXFP4: at level 4 it decodes to the same weights.
///
/// Blocks more than 30 octaves below the largest of their row, or below 2^-54, become zero.
///
/// # Errors
/// [`NestedError`] if lengths do not fit together, a scale is NaN or above 2^15, or the codec is not
/// one of [`Mxfp4Fitter`].
pub fn quantize_mxfp4(
    weights: &Mxfp4Rows<'_>,
    codec: &NestedCodec,
    options: &QuantizeOptions,
) -> Result<QuantizedMatrix, NestedError> {
    let grid = weights.check()?;
    codec.check()?;
    if codec.steps != ScaleSteps::Octaves || codec.tables.iter().any(|t| t.t4 != ASCENDING) {
        let (what, expected) = ("codec of MXFP4 weights", "octaves and the values of E2M1");
        return Err(NestedError::Codec { what, found: codec.steps.to_byte().into(), expected });
    }
    let rows = grid.tiles * TILE_ROWS;
    let mut matrix = QuantizedMatrix {
        rows: weights.rows,
        cols: weights.cols,
        codes: vec![ZERO_CODE; rows * weights.cols],
        row_scales: vec![f16::ZERO; rows],
        steps: vec![ZERO_STEP; rows * grid.groups],
        tile_tables: vec![0; grid.tiles],
    };
    for (code, element) in matrix.codes.iter_mut().zip(weights.elements) {
        *code = prefix(*element) << 4;
    }
    for row in 0..weights.rows {
        let steps = &mut matrix.steps[row * grid.groups..][..grid.groups];
        matrix.row_scales[row] = row_scale(weights, row, steps)?;
    }
    if codec.tables.len() > 1 {
        let cells = TileCells::of_matrix(weights, None);
        for (table, cells) in matrix.tile_tables.iter_mut().zip(&cells) {
            *table = u8::try_from(cells.best(&codec.tables, &options.level_weights)).unwrap_or(0);
        }
    }
    Ok(matrix)
}

/// The scale of one row, and the steps of its blocks.
fn row_scale(weights: &Mxfp4Rows<'_>, row: usize, steps: &mut [u8]) -> Result<f16, NestedError> {
    let groups = weights.cols / GROUP;
    let exponent = |group: usize| weights.exponent(row * groups + group);
    let Some(largest) = (0..groups).filter_map(exponent).max() else { return Ok(f16::ZERO) };
    if largest > *ROW_EXPONENTS.end() {
        let magnitude = libm::exp2f(largest as f32);
        return Err(NestedError::RowTooLarge { row, magnitude });
    }
    let top = largest.max(*ROW_EXPONENTS.start());
    for (group, step) in steps.iter_mut().enumerate() {
        let below = exponent(group).and_then(|exponent| u8::try_from(top - exponent).ok());
        *step = below.filter(|below| *below < ZERO_STEP).unwrap_or(ZERO_STEP);
    }
    Ok(f16::from_f32(libm::exp2f(top as f32)))
}

/// How much the weights of one tile count, by their prefix.
#[derive(Clone, Copy, Debug, Default)]
struct TileCells([f64; 16]);

impl TileCells {
    /// The cells of all tiles of a matrix whose columns count by `importance`.
    fn of_matrix(weights: &Mxfp4Rows<'_>, importance: Option<&[f32]>) -> Vec<Self> {
        let groups = weights.cols / GROUP;
        let mut tiles = vec![Self::default(); weights.rows.div_ceil(TILE_ROWS)];
        for (block, elements) in weights.elements.chunks_exact(GROUP).enumerate() {
            let cells = &mut tiles[block / groups / TILE_ROWS].0;
            let scale = f64::from(power_of_two(weights.exponents[block]));
            let importance = importance.map(|all| &all[block % groups * GROUP..][..GROUP]);
            for (k, element) in elements.iter().enumerate() {
                let factor = importance.map_or(1.0, |importance| f64::from(importance[k]));
                cells[usize::from(prefix(element & 15))] += factor * scale * scale;
            }
        }
        tiles
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

    /// Adds rows whose columns count by `importance`, `[cols]`.
    ///
    /// # Errors
    /// [`NestedError`] if lengths do not fit together or a scale is NaN.
    pub fn add(
        &mut self,
        weights: &Mxfp4Rows<'_>,
        importance: Option<&[f32]>,
    ) -> Result<(), NestedError> {
        weights.check()?;
        if let Some(importance) = importance.filter(|all| all.len() != weights.cols) {
            let (expected, found) = (weights.cols, importance.len());
            return Err(NestedError::Length { what: "importance", expected, found });
        }
        self.tiles.extend(TileCells::of_matrix(weights, importance));
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
