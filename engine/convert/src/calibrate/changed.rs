//! A checkpoint with changed weights: noise in matrices of one class, or other weights in one matrix.

use std::sync::Arc;

use nestling_formats::store::GroupId;
use nestling_formats::{FloatKind, Level, MatrixKind};
use nestling_import::{Checkpoint, ModelConfig};

use nestling_core::error::EngineError;
use nestling_core::weights::{FloatMatrix, MatrixWeights};
use nestling_experts::expert::{CheckpointSource, ExpertSource, Matrices, StoreSource};

/// Mean square of the noise relative to that of a row's weights: the error of level 2 (docs/perf/060).
const NOISE: f64 = 0.112;

/// Matrices of a layer that have the same kind: those of all experts, or the one that all tokens use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MatrixClass {
    pub kind: MatrixKind,
    pub is_expert: bool,
}

impl MatrixClass {
    pub fn of(group: &GroupId, kind: MatrixKind) -> Self {
        Self { kind, is_expert: group.expert().is_some() }
    }

    /// Returns whether the matrices belong to the feed-forward part of a layer.
    pub fn is_feed_forward(self) -> bool {
        matches!(self.kind, MatrixKind::Gate | MatrixKind::Up | MatrixKind::Down)
    }
}

/// Change of some matrices of a checkpoint.
#[derive(Clone, Copy)]
pub(super) enum WeightChange<'a> {
    /// Noise in the matrices of a class of one layer.
    Noise { layer: u32, class: MatrixClass },
    /// Other weights, `[rows, cols]`, in the matrices of a kind that are not of experts.
    Replaced { kind: MatrixKind, weights: &'a [f32] },
}

/// A checkpoint with changed weights.
pub(super) struct ChangedSource<'a> {
    source: CheckpointSource<&'a Checkpoint>,
    /// Change, if any.
    pub change: Option<WeightChange<'a>>,
}

impl<'a> ChangedSource<'a> {
    pub fn new(checkpoint: &'a Checkpoint, change: Option<WeightChange<'a>>) -> Self {
        Self { source: CheckpointSource::new(checkpoint), change }
    }

    pub fn checkpoint(&self) -> &Checkpoint {
        self.source.checkpoint()
    }
}

impl ExpertSource for ChangedSource<'_> {
    fn config(&self) -> &ModelConfig {
        self.source.config()
    }

    fn level_max(&self) -> Option<Level> {
        None
    }

    fn matrices(&self, group: &GroupId) -> Result<Matrices, EngineError> {
        let mut matrices = self.source.matrices(group)?;
        for (kind, matrix) in &mut matrices.list {
            let MatrixWeights::Float(weights) = matrix else { continue };
            let of_group = MatrixClass::of(group, *kind);
            match self.change {
                Some(WeightChange::Noise { layer, class })
                    if class == of_group && group.layer() == Some(layer) =>
                {
                    *weights = with_noise(weights, seed(group, *kind))?;
                }
                Some(WeightChange::Replaced { kind: replaced, weights: other })
                    if replaced == *kind && !of_group.is_expert =>
                {
                    *weights = FloatMatrix::from_f32(weights.rows(), weights.cols(), other)?;
                }
                _ => (),
            }
        }
        Ok(matrices)
    }

    fn store_source(self: Arc<Self>) -> Option<Arc<StoreSource>> {
        None
    }

    fn floats(&self, layer: Option<u32>) -> Result<Vec<(FloatKind, Vec<f32>)>, EngineError> {
        self.source.floats(layer)
    }
}

/// Returns a number that differs between matrices.
fn seed(group: &GroupId, kind: MatrixKind) -> u64 {
    // Default: a matrix outside of layers or experts counts as that of layer or expert 0.
    let part = |number: Option<u32>| u64::from(number.map_or(0, |number| number + 1));
    part(group.layer()) << 40 | part(group.expert()) << 8 | u64::from(kind as u8)
}

/// Returns the matrix with uniform noise of mean square [`NOISE`] relative to each row.
fn with_noise(matrix: &FloatMatrix, seed: u64) -> Result<FloatMatrix, EngineError> {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let mut values = vec![0.0f32; rows * cols];
    let mut state = seed;
    for (number, row) in values.chunks_exact_mut(cols.max(1)).enumerate() {
        matrix.read_row(number, row);
        let square = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / cols.max(1) as f64;
        // A uniform value between -1 and 1 has a mean square of 1/3.
        let width = (3.0 * NOISE * square).sqrt() as f32;
        row.iter_mut().for_each(|x| *x += width * uniform(&mut state));
    }
    FloatMatrix::from_f32(rows, cols, &values)
}

/// Returns the next number between -1 and 1 (SplitMix64; Steele, Lea and Flood 2014).
fn uniform(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    (mixed >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_has_the_stated_square_and_no_mean() {
        let (rows, cols) = (64, 256);
        let weights: Vec<f32> =
            (0..rows * cols).map(|at| ((at % 17) as f32 - 8.0) * 0.01).collect();
        let matrix = FloatMatrix::from_f32(rows, cols, &weights).unwrap();
        let noisy = with_noise(&matrix, 3).unwrap();
        let mut row = vec![0.0; cols];
        let (mut noise, mut mean, mut square) = (0.0, 0.0, 0.0);
        for (number, exact) in weights.chunks_exact(cols).enumerate() {
            noisy.read_row(number, &mut row);
            for (found, exact) in row.iter().zip(exact) {
                noise += f64::from(found - exact).powi(2);
                mean += f64::from(found - exact);
                square += f64::from(*exact).powi(2);
            }
        }
        // 16,384 uniform values: a relative standard deviation of the square of sqrt(0.8 / 16384) = 0.7 %, and of the
        // mean of 1/128 of the root of the square. Both bounds are five times that.
        let count = (rows * cols) as f64;
        assert!((noise / square / NOISE - 1.0).abs() < 0.035, "{}", noise / square);
        assert!((mean / count).abs() < 0.04 * (noise / count).sqrt(), "{}", mean / count);
    }
}
