//! Fit of a codec to the matrices that share it.

use super::quantize::check_input;
use super::tables::{TileShape, fit_tables};
use super::{
    GROUP, InputTransform, NestedCodec, NestedError, NestedTables, QuantizeOptions,
    QuantizedMatrix, STEPS, ScaleSteps, TILE_ROWS, quantize_matrix,
};
use crate::Level;

/// Number of groups sampled per matrix, in whole tiles spread evenly.
const SAMPLE_GROUPS: usize = 1024;

/// Number of sampled groups used in the search for alpha.
const ALPHA_GROUPS: usize = 4096;

/// Number of sampled groups used to fit a single table.
const TABLE_GROUPS: usize = 16_384;

/// Number of sampled groups used to fit several tables.
const SHAPE_GROUPS: usize = 65_536;

/// Rounds of alternately fitting codes and tables, during the search for alpha and after it.
const ALPHA_ROUNDS: usize = 2;
const TABLE_ROUNDS: usize = 2;

/// Collects samples of the matrices of one layer and kind, then fits their codec.
///
/// Fitters of several threads can be joined with [`Self::absorb`]. The codec depends only on the samples and
/// their order.
#[derive(Clone, Debug)]
pub struct CodecFitter {
    options: QuantizeOptions,
    samples: Vec<Sample>,
}

#[derive(Clone, Debug)]
struct Sample {
    rows: usize,
    cols: usize,
    weights: Vec<f32>,            // [rows, cols]
    importance: Option<Vec<f32>>, // [cols]
}

impl CodecFitter {
    /// Creates a fitter without samples.
    pub fn new(options: &QuantizeOptions) -> Self {
        Self { options: options.clone(), samples: Vec::new() }
    }

    /// Options given to [`Self::new`].
    pub fn options(&self) -> &QuantizeOptions {
        &self.options
    }

    /// Samples a matrix `[rows, cols]`; `importance`, `[cols]`, is as in [`quantize_matrix`].
    ///
    /// The whole matrix is checked as in [`quantize_matrix`]. About 128 KB of it are kept.
    pub fn add(
        &mut self,
        weights: &[f32],
        rows: usize,
        cols: usize,
        importance: Option<&[f32]>,
    ) -> Result<(), NestedError> {
        let grid = check_input(weights, rows, cols, importance)?;
        let wanted = (SAMPLE_GROUPS / (grid.groups * TILE_ROWS)).clamp(1, grid.tiles);
        let mut sample = Sample {
            rows: 0,
            cols,
            weights: Vec::with_capacity(wanted * TILE_ROWS * cols),
            importance: importance.map(<[f32]>::to_vec),
        };
        for index in 0..wanted {
            let tile = index * grid.tiles / wanted;
            let from = tile * TILE_ROWS;
            let to = rows.min(from + TILE_ROWS);
            sample.rows += to - from;
            sample.weights.extend_from_slice(&weights[from * cols..to * cols]);
        }
        self.samples.push(sample);
        Ok(())
    }

    /// Appends the samples of another fitter.
    pub fn absorb(&mut self, other: Self) {
        self.samples.extend(other.samples);
    }

    /// Returns the codec that fits the samples best. Alpha is found by search, the table by centroids.
    ///
    /// Several tables, if requested, are fitted by clustering tiles by their best table.
    pub fn finish(self) -> Result<NestedCodec, NestedError> {
        self.options.check()?;
        let few = thin(&self.samples, ALPHA_GROUPS);
        let mut best = (f64::INFINITY, initial_codec(ALPHA_COARSE[0]));
        let mut search = |alpha_a: u16| {
            let (cost, codec) = self.fit_tables(&few, initial_codec(alpha_a), ALPHA_ROUNDS)?;
            if cost < best.0 {
                best = (cost, codec);
            }
            Ok::<u16, NestedError>(best.1.alpha_a)
        };
        let mut centre = 0;
        for alpha_a in ALPHA_COARSE {
            centre = search(alpha_a)?;
        }
        for reach in ALPHA_REACH {
            let around = [centre - reach, (centre + reach).min(ALPHA_LARGEST)];
            for alpha_a in around {
                centre = search(alpha_a)?;
            }
        }
        let samples = thin(&self.samples, TABLE_GROUPS);
        let (_, mut codec) = self.fit_tables(&samples, best.1, TABLE_ROUNDS)?;
        if self.options.tables > 1 {
            for _ in 0..TABLE_ROUNDS {
                codec.tables = fit_tables(&self.shapes(&codec)?, &codec, &self.options);
            }
        }
        Ok(codec)
    }

    fn shapes(&self, codec: &NestedCodec) -> Result<Vec<TileShape>, NestedError> {
        let mut shapes = Vec::new();
        for sample in thin(&self.samples, SHAPE_GROUPS) {
            let (rows, cols, weights) = (sample.rows, sample.cols, &sample.weights);
            let importance = sample.importance.as_deref();
            let matrix = quantize_matrix(weights, rows, cols, codec, importance, &self.options)?;
            shapes.extend(TileShape::of_matrix(weights, &matrix, importance));
        }
        Ok(shapes)
    }

    /// Fits codes and tables alternately. Returns the joint error of the last codes with the tables fitted to
    /// them.
    fn fit_tables(
        &self,
        samples: &[Sample],
        mut codec: NestedCodec,
        rounds: usize,
    ) -> Result<(f64, NestedCodec), NestedError> {
        let mut cost = 0.0;
        for _ in 0..rounds {
            let mut moments = Moments::default();
            for sample in samples {
                let importance = sample.importance.as_deref();
                let (weights, options) = (&sample.weights, &self.options);
                let matrix = quantize_matrix(
                    weights,
                    sample.rows,
                    sample.cols,
                    &codec,
                    importance,
                    options,
                )?;
                moments.add(weights, &matrix, importance);
            }
            codec.tables = vec![moments.centroids(&codec)];
            cost = moments.cost(&codec, &self.options.level_weights);
        }
        Ok((cost, codec))
    }
}

/// Values of alpha * 2^14 to try first: 0.45, 0.6, 0.75 and 0.9.
const ALPHA_COARSE: [u16; 4] = [7373, 9830, 12288, 14746];

/// Distances from the best alpha to try next, about 0.075, 0.04 and 0.02.
const ALPHA_REACH: [u16; 3] = [1229, 614, 307];

/// Alpha 1: no companding.
const ALPHA_LARGEST: u16 = 16384;

/// Returns whole samples, spread evenly, with about `groups` groups in total.
fn thin(samples: &[Sample], groups: usize) -> Vec<Sample> {
    let all: usize = samples.iter().map(Sample::groups).sum();
    let keep = (all / groups.max(1)).max(1);
    samples.iter().step_by(keep).cloned().collect()
}

impl Sample {
    fn groups(&self) -> usize {
        self.rows * self.cols.div_ceil(GROUP)
    }
}

/// Moments of the weights in units of their scales, by code, weighted by scale^2 * importance.
struct Moments {
    codes: [[f64; 3]; 256], // weight, weight * u, weight * u^2
    /// Weighted squares of the weights in zero groups, which are independent of the table.
    zeroed: f64,
}

impl Default for Moments {
    fn default() -> Self {
        Self { codes: [[0.0; 3]; 256], zeroed: 0.0 }
    }
}

impl Moments {
    fn add(&mut self, weights: &[f32], matrix: &QuantizedMatrix, importance: Option<&[f32]>) {
        let groups = matrix.cols.div_ceil(GROUP);
        for (row, weights) in weights.chunks_exact(matrix.cols).enumerate() {
            for (col, weight) in weights.iter().enumerate() {
                let cell = row * groups + col / GROUP;
                let step = STEPS[usize::from(matrix.steps[cell])];
                let scale = f64::from(matrix.row_scales[row].to_f32() * step);
                let importance = importance.map_or(1.0, |importance| f64::from(importance[col]));
                let weight = f64::from(*weight);
                if scale == 0.0 {
                    self.zeroed += importance * weight * weight;
                    continue;
                }
                let code = matrix.codes[cell * GROUP + col % GROUP];
                let moments = &mut self.codes[usize::from(code)];
                moments[0] += importance * scale * scale;
                moments[1] += importance * scale * weight;
                moments[2] += importance * weight * weight;
            }
        }
    }

    /// Returns tables with the centroids of their cells; an empty cell keeps its value.
    fn centroids(&self, codec: &NestedCodec) -> NestedTables {
        let entry = |level: Level, prefix: usize| {
            let width = 256 >> level.bits();
            let cell = self.cell(prefix * width, width);
            if cell[0] > 0.0 {
                (cell[1] / cell[0] * 127.0).round().clamp(-127.0, 127.0) as i8
            } else {
                let code = u8::try_from(prefix * width).unwrap_or(u8::MAX);
                codec.value(level, 0, code).clamp(-127, 127) as i8
            }
        };
        NestedTables {
            t2: std::array::from_fn(|prefix| entry(Level::L2, prefix)),
            t3: std::array::from_fn(|prefix| entry(Level::L3, prefix)),
            t4: std::array::from_fn(|prefix| entry(Level::L4, prefix)),
        }
    }

    fn cell(&self, from: usize, width: usize) -> [f64; 3] {
        self.codes[from..from + width].iter().fold([0.0; 3], |sum, moments| {
            [sum[0] + moments[0], sum[1] + moments[1], sum[2] + moments[2]]
        })
    }

    fn error(&self, codec: &NestedCodec, level: Level) -> f64 {
        let errors = (0u8..=255).zip(&self.codes).map(|(code, moments)| {
            let value = f64::from(codec.value(level, 0, code)) * f64::from(codec.steps.unit(level));
            moments[2] - 2.0 * value * moments[1] + value * value * moments[0]
        });
        self.zeroed + errors.sum::<f64>()
    }

    /// Returns the objective for choosing alpha: the weighted sum of the logarithms of all levels' errors.
    fn cost(&self, codec: &NestedCodec, level_weights: &[f32; 5]) -> f64 {
        let levels = Level::ALL.into_iter().zip(level_weights);
        levels
            .map(|(level, weight)| {
                f64::from(*weight) * libm::log(self.error(codec, level).max(f64::MIN_POSITIVE))
            })
            .sum()
    }
}

/// Returns a codec with one table that holds the middle of each cell.
pub(super) fn initial_codec(alpha_a: u16) -> NestedCodec {
    let alpha_b = 32768 - 2 * alpha_a;
    let (a, b) = (f32::from(alpha_a) / 16384.0, f32::from(alpha_b) / 32768.0);
    let middle = |index: usize, bits: i32| {
        let v = (index as f32 + 0.5) / (1 << (bits - 1)) as f32 - 1.0;
        (v * (a + b * v.abs()) * 127.0).round() as i8
    };
    let tables = NestedTables {
        t2: std::array::from_fn(|index| middle(index, 2)),
        t3: std::array::from_fn(|index| middle(index, 3)),
        t4: std::array::from_fn(|index| middle(index, 4)),
    };
    NestedCodec {
        alpha_a,
        alpha_b,
        beta_q: 16,
        tables: vec![tables],
        inputs: InputTransform::None,
        steps: ScaleSteps::Eighths,
    }
}
