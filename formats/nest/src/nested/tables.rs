//! Fit of several tables for the matrices of a layer, by clustering tiles by their best table.
//!
//! After "Jointly Learnable Codebooks and Mappings" (arXiv 2309.17361), with alternation instead of
//! gradients: each tile takes the table with the smallest joint error, then each table becomes the centroids
//! of its tiles. The mapping is proximal, as in the paper: a weight may only take a code within a quarter of
//! a level-4 cell of the weight's position. Codes therefore move by one cell at most while tables are fitted.

use super::coder::Coder;
use super::quantize::QuantizeOptions;
use super::{GROUP, NestedCodec, NestedTables, QuantizedMatrix, STEPS, TILE_ROWS};
use crate::Level;

/// Rounds of alternately assigning tiles and fitting tables once all tables exist.
const LAST_ROUNDS: usize = 6;

/// Distribution of a tile's weights relative to their scales.
///
/// A weight adds `importance * scale^2` to the bin of `weight / scale`. The joint error of the tile with any
/// table is then a sum over bins.
#[derive(Clone, Debug)]
pub(super) struct TileShape {
    bins: Vec<f32>, // [Coder::BINS]
}

impl TileShape {
    /// Returns the shapes of all tiles of a coded matrix; `weights` is `[rows, cols]`.
    pub fn of_matrix(
        weights: &[f32],
        matrix: &QuantizedMatrix,
        importance: Option<&[f32]>,
    ) -> Vec<Self> {
        let groups = matrix.cols.div_ceil(GROUP);
        let empty = Self { bins: vec![0.0; Coder::BINS] };
        let mut shapes = vec![empty; matrix.rows.div_ceil(TILE_ROWS)];
        for (row, weights) in weights.chunks_exact(matrix.cols).enumerate() {
            let shape = &mut shapes[row / TILE_ROWS];
            for (group, weights) in weights.chunks(GROUP).enumerate() {
                let step = STEPS[usize::from(matrix.steps[row * groups + group])];
                let scale = matrix.row_scales[row].to_f32() * step;
                if scale == 0.0 {
                    continue;
                }
                let factors = importance.map(|all| &all[group * GROUP..][..weights.len()]);
                for (k, weight) in weights.iter().enumerate() {
                    let factor = factors.map_or(1.0, |factors| factors[k]);
                    shape.bins[Coder::bin(weight / scale)] += factor * scale * scale;
                }
            }
        }
        shapes
    }

    fn cost(&self, coder: &Coder) -> f64 {
        coder.bin_errors().zip(&self.bins).map(|(error, bin)| f64::from(error * bin)).sum()
    }
}

/// Total weight and weighted sum of values, by the level-4 cell of their code.
#[derive(Clone, Copy, Debug, Default)]
struct Cells([[f64; 2]; 16]);

impl Cells {
    fn add(&mut self, shape: &TileShape, coder: &Coder) {
        for ((code, place), bin) in coder.bin_codes().zip(&shape.bins) {
            let cell = &mut self.0[usize::from(code >> 4)];
            let bin = f64::from(*bin);
            cell[0] += bin;
            cell[1] += bin * f64::from(place);
        }
    }

    fn prefix(&self, level: Level, prefix: usize) -> [f64; 2] {
        let width = 16 >> level.bits();
        let cells = &self.0[prefix * width..][..width];
        cells.iter().fold([0.0; 2], |sum, cell| [sum[0] + cell[0], sum[1] + cell[1]])
    }

    /// Returns the centroids; an empty cell keeps its old value.
    fn tables(&self, old: &NestedTables) -> NestedTables {
        let entry = |level, prefix, old: i8| match self.prefix(level, prefix) {
            [count, sum] if count > 0.0 => {
                libm::round(sum / count * 127.0).clamp(-127.0, 127.0) as i8
            }
            _ => old,
        };
        NestedTables {
            t2: std::array::from_fn(|prefix| entry(Level::L2, prefix, old.t2[prefix])),
            t3: std::array::from_fn(|prefix| entry(Level::L3, prefix, old.t3[prefix])),
            t4: std::array::from_fn(|prefix| entry(Level::L4, prefix, old.t4[prefix])),
        }
    }

    /// Returns the reduction of a tile's joint error by tile-specific centroids, with unchanged codes.
    fn gain(&self, tables: &NestedTables, level_weights: &[f32; 5]) -> f64 {
        let levels: [(Level, &[i8]); 3] =
            [(Level::L2, &tables.t2), (Level::L3, &tables.t3), (Level::L4, &tables.t4)];
        let mut gain = 0.0;
        for (level, values) in levels {
            let factor = f64::from(level_weights[level.index()])
                * f64::from(1u32 << (2 * u32::from(level.bits())));
            for (prefix, value) in values.iter().enumerate() {
                let [count, sum] = self.prefix(level, prefix);
                if count > 0.0 {
                    let distance = sum / count - f64::from(*value) / 127.0;
                    gain += factor * count * distance * distance;
                }
            }
        }
        gain
    }
}

/// Fits `options.tables` tables to tiles of the given shapes, ordered from most to least used.
///
/// Starts from the codec's tables and repeatedly adds the centroids of the tile that its table fits worst.
pub(super) fn fit_tables(
    shapes: &[TileShape],
    codec: &NestedCodec,
    options: &QuantizeOptions,
) -> Vec<NestedTables> {
    let mut fit = Fit { shapes, codec: codec.clone(), options, chosen: vec![0; shapes.len()] };
    fit.codec.tables.truncate(options.tables);
    while fit.codec.tables.len() < options.tables {
        let coders = fit.choose();
        fit.add_furthest(&coders);
        fit.refit();
    }
    for _ in 0..LAST_ROUNDS {
        fit.refit();
    }
    fit.choose();
    fit.sort_by_use();
    fit.codec.tables
}

struct Fit<'a> {
    shapes: &'a [TileShape],
    codec: NestedCodec,
    options: &'a QuantizeOptions,
    chosen: Vec<usize>, // [shapes]
}

impl Fit<'_> {
    /// Assigns to each tile the table with the smallest joint error, the first if equal.
    fn choose(&mut self) -> Vec<Coder> {
        let coders = Coder::all(&self.codec, &self.options.level_weights);
        for (shape, chosen) in self.shapes.iter().zip(&mut self.chosen) {
            let mut best = f64::INFINITY;
            for (table, coder) in coders.iter().enumerate() {
                let cost = shape.cost(coder);
                if cost < best {
                    (best, *chosen) = (cost, table);
                }
            }
        }
        coders
    }

    /// Sets each table to the centroids of its tiles.
    fn refit(&mut self) {
        let coders = self.choose();
        let mut cells = vec![Cells::default(); coders.len()];
        for (shape, chosen) in self.shapes.iter().zip(&self.chosen) {
            cells[*chosen].add(shape, &coders[*chosen]);
        }
        for (tables, cells) in self.codec.tables.iter_mut().zip(&cells) {
            *tables = cells.tables(tables);
        }
    }

    /// Adds the centroids of the tile that would gain most from a separate table.
    fn add_furthest(&mut self, coders: &[Coder]) {
        let mut furthest = (f64::NEG_INFINITY, self.codec.tables[0]);
        for (shape, chosen) in self.shapes.iter().zip(&self.chosen) {
            let mut cells = Cells::default();
            cells.add(shape, &coders[*chosen]);
            let tables = &self.codec.tables[*chosen];
            let gain = cells.gain(tables, &self.options.level_weights);
            if gain > furthest.0 {
                furthest = (gain, cells.tables(tables));
            }
        }
        self.codec.tables.push(furthest.1);
    }

    fn sort_by_use(&mut self) {
        let mut uses = vec![0usize; self.codec.tables.len()];
        self.chosen.iter().for_each(|table| uses[*table] += 1);
        let mut order: Vec<usize> = (0..uses.len()).collect();
        order.sort_by_key(|table| (std::cmp::Reverse(uses[*table]), *table));
        self.codec.tables = order.into_iter().map(|table| self.codec.tables[table]).collect();
    }
}
