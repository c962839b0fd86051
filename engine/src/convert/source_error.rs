//! How far the coded weights are from those of the source.

use std::collections::BTreeMap;

use nestling_formats::nested::{NestedCodec, NestedError, QuantizedMatrix};
use nestling_formats::{Level, MatrixKind};

use super::sensitivity::{CodedMatrix, decode};

/// Sums of squares over weights and over what coding changed of them, for each kind of matrix;
/// matrices of experts and of what every token passes apart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceErrors {
    kinds: BTreeMap<(MatrixKind, bool), Sums>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sums {
    weights: f64,
    errors: f64,
}

impl Sums {
    fn relative(self) -> f64 {
        if self.weights > 0.0 { (self.errors / self.weights).sqrt() } else { 0.0 }
    }
}

impl SourceErrors {
    /// Root mean square of the error over that of the weights for each kind of matrix, and whether
    /// it is one of experts.
    pub fn by_kind(&self) -> impl Iterator<Item = (MatrixKind, bool, f64)> + '_ {
        self.kinds.iter().map(|((kind, expert), sums)| (*kind, *expert, sums.relative()))
    }

    /// The same over all weights; none where nothing was coded.
    pub fn overall(&self) -> Option<f64> {
        let add = |all: Sums, sums: &Sums| Sums {
            weights: all.weights + sums.weights,
            errors: all.errors + sums.errors,
        };
        let all = self.kinds.values().fold(Sums::default(), add);
        (!self.kinds.is_empty()).then(|| all.relative())
    }

    /// Counts some rows of a matrix as they were, and as they are at a level.
    pub(super) fn add(
        &mut self,
        key: (MatrixKind, bool),
        (weights, coded): (&[f32], &QuantizedMatrix),
        (codec, level): (&NestedCodec, Level),
    ) -> Result<(), NestedError> {
        let found = decode(&CodedMatrix { weights, coded, codec, bias: &[] }, level)?;
        let square = |x: f32| f64::from(x) * f64::from(x);
        let sums = self.kinds.entry(key).or_default();
        sums.weights += weights.iter().map(|weight| square(*weight)).sum::<f64>();
        sums.errors += weights.iter().zip(&found).map(|(a, b)| square(a - b)).sum::<f64>();
        Ok(())
    }

    pub(super) fn absorb(&mut self, other: &Self) {
        for (key, sums) in &other.kinds {
            let own = self.kinds.entry(*key).or_default();
            own.weights += sums.weights;
            own.errors += sums.errors;
        }
    }
}
