//! Rescaling of tables, so that decoded weights are as large as their sources.
//!
//! Codes with the least output error decode to weights `ŵ` that are too small: the values of a quantizer's cells are
//! means, and descent gives up most where inputs are weak. Such errors have the same sign in all matrices, so they add
//! up over an expert's three products and over layers, where others cancel. At level 2 of a small model with experts they
//! cost a quarter of its divergence (`docs/perf/057-shrinkage.md`). A dense model is better without
//! (`docs/perf/059-dense-tables.md`).

use super::strided::nearest;
use super::{GROUP, NestedCodec, NestedError, QuantizedMatrix, TILE_ROWS};
use crate::Level;

/// Largest factor of a table, and smallest reciprocal.
const GAIN_MAX: f64 = 1.25;

/// Sums that compare decoded weights with their sources, by table and level.
///
/// `Σ w ŵ / Σ w²` is 1 where decoded weights are neither too small nor too large on average. Sums of several
/// matrices of a codec are added up.
#[derive(Clone, Debug)]
pub struct Shrinkage {
    tables: Vec<Products>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Products {
    /// Sum of weight times decoded weight at levels 2, 3 and 4.
    decoded: [f64; 3],
    /// Sum of squared weights.
    squares: f64,
}

impl Shrinkage {
    /// Creates empty sums for the tables of a codec.
    pub fn new(codec: &NestedCodec) -> Self {
        Self { tables: vec![Products::default(); codec.tables.len()] }
    }

    /// Adds a matrix `[matrix.rows, matrix.cols]` that was coded with the codec.
    ///
    /// # Errors
    /// [`NestedError`] if lengths do not match.
    pub fn add(
        &mut self,
        weights: &[f32],
        matrix: &QuantizedMatrix,
        codec: &NestedCodec,
    ) -> Result<(), NestedError> {
        let grid = matrix.check()?;
        let (expected, found) = (matrix.rows * matrix.cols, weights.len());
        if expected != found {
            return Err(NestedError::Length { what: "weights", expected, found });
        }
        for (row, weights) in weights.chunks_exact(matrix.cols).enumerate() {
            let (tile, tables) = (row / TILE_ROWS, self.tables.len());
            let table = matrix.tile_tables[tile];
            let products = self.tables.get_mut(usize::from(table));
            let products = products.ok_or(NestedError::TableIndex { tile, table, tables })?;
            let scale = matrix.row_scales[row];
            let steps = &matrix.steps[row * grid.groups..][..grid.groups];
            let codes = &matrix.codes[row * grid.groups * GROUP..];
            for ((weights, codes), step) in
                weights.chunks(GROUP).zip(codes.chunks(GROUP)).zip(steps)
            {
                for (level, sum) in
                    [Level::L2, Level::L3, Level::L4].into_iter().zip(&mut products.decoded)
                {
                    let scale = codec.steps.weight_scale(scale, level, *step);
                    let values =
                        codes.iter().map(|code| f32::from(codec.value(level, table, *code)));
                    *sum += weights
                        .iter()
                        .zip(values)
                        .map(|(w, v)| f64::from(w * scale * v))
                        .sum::<f64>();
                }
                products.squares += weights.iter().map(|w| f64::from(w * w)).sum::<f64>();
            }
        }
        Ok(())
    }

    /// Multiplies each table by `Σ w² / Σ w ŵ` of its level and rounds its entries to 2 more than multiples of 4.
    /// Codes chosen again with it shrink a little again, so that a second round is worthwhile.
    pub fn rescale(&self, codec: &mut NestedCodec) {
        for (tables, products) in codec.tables.iter_mut().zip(&self.tables) {
            let [gain2, gain3, gain4] =
                products.decoded.map(|decoded| gain(products.squares, decoded));
            tables.t2 = nearest(tables.t2, gain2);
            tables.t3 = nearest(tables.t3, gain3);
            tables.t4 = nearest(tables.t4, gain4);
        }
    }
}

fn gain(squares: f64, decoded: f64) -> f64 {
    if decoded > 0.0 { (squares / decoded).clamp(1.0 / GAIN_MAX, GAIN_MAX) } else { 1.0 }
}
