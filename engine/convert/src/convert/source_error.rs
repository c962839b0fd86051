//! Errors of the coded weights relative to the source.
//!
//! There are two measures, both relative root mean squares that are 0 for exact codes. The plain measure
//! treats all weights alike. The weighted measure uses the second moments of each matrix's inputs in
//! calibration, and is the error of the matrix's outputs. Calibration lowers the weighted error at the
//! expense of the plain one, so the plain error does not show which of two stores is better.

use std::collections::BTreeMap;

use nestling_formats::nested::{
    NestedCodec, NestedError, PlaneForm, QuantizedMatrix, SecondMoments, TILE_ROWS,
};
use nestling_formats::store::{Encoding, Group, GroupId};
use nestling_formats::{Level, MatrixKind};

use super::sensitivity::{CodedMatrix, decode, dot};
use nestling_levels::allocation::Allocation;

/// Maximum number of products per level for the output error of one block.
const OUTPUT_PRODUCTS: usize = 1 << 26;

/// Sums of squares of the weights, and of the weight errors at each level.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sums {
    weights: f64,
    errors: [f64; 5],
}

impl Sums {
    fn add(&mut self, other: &Self, factor: f64) {
        self.weights += factor * other.weights;
        self.errors.iter_mut().zip(other.errors).for_each(|(sum, error)| *sum += factor * error);
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        std::iter::once(self.weights).chain(self.errors)
    }

    fn of_values(values: &[f64]) -> Option<Self> {
        let (weights, errors) = values.split_first()?;
        let is_sum = |value: &f64| value.is_finite() && *value >= 0.0;
        let errors: [f64; 5] = errors.try_into().ok()?;
        values.iter().all(is_sum).then_some(Self { weights: *weights, errors })
    }
}

/// Sums of one matrix, or of some of its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct MatrixSums {
    plain: Sums,
    /// Sums weighted by second moments whose mean diagonal is 1; `None` without calibration.
    weighted: Option<Sums>,
}

impl MatrixSums {
    /// Computes the sums of rows. The weighted sums of large blocks use an evenly spaced sample of their
    /// tiles.
    pub fn of(
        weights: &[f32],
        coded: &QuantizedMatrix,
        codec: &NestedCodec,
        moments: Option<&SecondMoments>,
    ) -> Result<Self, NestedError> {
        let matrix = CodedMatrix { weights, coded, codec, bias: &[] };
        let square = |x: f32| f64::from(x) * f64::from(x);
        let mut sums = Self::default();
        sums.plain.weights = weights.iter().map(|weight| square(*weight)).sum();
        let mean = moments.map(|moments| (moments, f64::from(moments.mean_diagonal())));
        let moments = mean.filter(|(_, mean)| mean.is_finite() && *mean > 0.0);
        let mut weighted = Sums::default();
        let rows = sampled_rows(coded.rows, coded.cols);
        let output = |values: &[f32]| {
            moments.map_or(0.0, |(moments, mean)| square_of_outputs(values, &rows, moments) / mean)
        };
        weighted.weights = output(weights);
        for (at, level) in Level::ALL.into_iter().enumerate() {
            let mut error = decode(&matrix, level)?;
            error.iter_mut().zip(weights).for_each(|(found, weight)| *found = weight - *found);
            sums.plain.errors[at] = error.iter().map(|error| square(*error)).sum();
            weighted.errors[at] = output(&error);
        }
        // Extrapolates from the sample to all rows.
        let factor = coded.rows as f64 / rows.len().max(1) as f64;
        sums.weighted = moments.map(|_| {
            let mut all = Sums::default();
            all.add(&weighted, factor);
            all
        });
        Ok(sums)
    }

    pub fn add(&mut self, other: &Self) {
        self.plain.add(&other.plain, 1.0);
        if let Some(weighted) = &other.weighted {
            self.weighted.get_or_insert_default().add(weighted, 1.0);
        }
    }
}

/// Returns the rows of evenly spaced whole tiles; all rows if the limit on products allows it.
fn sampled_rows(rows: usize, cols: usize) -> Vec<usize> {
    let tiles = rows.div_ceil(TILE_ROWS);
    let of_tile = cols.saturating_mul(cols).saturating_mul(TILE_ROWS).max(1);
    let count = (OUTPUT_PRODUCTS / of_tile).clamp(1, tiles.max(1));
    let first = (0..count).map(|number| number * tiles / count * TILE_ROWS);
    first.flat_map(|first| first..rows.min(first + TILE_ROWS)).collect()
}

/// Computes `tr(R H Rᵀ)` for some rows of a matrix.
fn square_of_outputs(values: &[f32], rows: &[usize], moments: &SecondMoments) -> f64 {
    let cols = moments.dim();
    let of_row = |row: &usize| {
        let row = &values[row * cols..(row + 1) * cols];
        let products = moments.values().chunks_exact(cols).map(|moment| dot(moment, row));
        row.iter().zip(products).map(|(a, b)| f64::from(*a) * f64::from(b)).sum::<f64>()
    };
    rows.iter().map(of_row).sum::<f64>().max(0.0)
}

/// Encodes the sums of a group for the journal: for each matrix, the number of sums and then the sums.
pub(super) fn encode(sums: &[Option<MatrixSums>]) -> Vec<u8> {
    let mut out = Vec::new();
    for sums in sums {
        let kept = sums.iter().flat_map(|sums| [Some(sums.plain), sums.weighted]).flatten();
        let kept: Vec<Sums> = kept.collect();
        out.push(kept.len() as u8);
        out.extend(kept.iter().flat_map(Sums::values).flat_map(f64::to_le_bytes));
    }
    out
}

fn decode_note(mut bytes: &[u8], matrices: usize) -> Option<Vec<Option<MatrixSums>>> {
    const SUMS: usize = 6;
    let mut all = Vec::with_capacity(matrices);
    for _ in 0..matrices {
        let (count, rest) = bytes.split_first()?;
        let (values, rest) = rest.split_at_checked(usize::from(*count) * SUMS * 8)?;
        bytes = rest;
        let values: Vec<f64> =
            values.as_chunks::<8>().0.iter().map(|value| f64::from_le_bytes(*value)).collect();
        let mut sums = values.chunks_exact(SUMS).map(Sums::of_values);
        all.push(match count {
            0 => None,
            1 => Some(MatrixSums { plain: sums.next()??, weighted: None }),
            2 => Some(MatrixSums { plain: sums.next()??, weighted: Some(sums.next()??) }),
            _ => return None,
        });
    }
    bytes.is_empty().then_some(all)
}

/// Sums of one matrix of a store.
#[derive(Clone, Debug, PartialEq)]
struct MatrixError {
    group: GroupId,
    /// Index of the matrix in the group.
    place: usize,
    kind: MatrixKind,
    /// Highest level of the matrix in the store.
    top: Level,
    sums: MatrixSums,
}

/// Errors of a store's matrices relative to the source, each at the highest level in the store. Matrices that
/// are stored exactly are not counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceErrors {
    matrices: Vec<MatrixError>,
    unknown: usize,
}

impl SourceErrors {
    /// Returns the number of matrices with known errors.
    pub fn measured(&self) -> usize {
        self.matrices.len()
    }

    /// Returns the number of matrices that an earlier, interrupted attempt coded without recording their
    /// errors.
    pub fn unknown(&self) -> usize {
        self.unknown
    }

    /// Returns the relative root mean square error of each kind of matrix, separately for matrices of experts
    /// (`true`) and others.
    pub fn by_kind(&self) -> impl Iterator<Item = (MatrixKind, bool, f64)> + use<> {
        self.relative(|sums| sums.plain)
    }

    /// Returns the relative root mean square error over all weights. Returns `None` if nothing was coded.
    pub fn overall(&self) -> Option<f64> {
        let sums = self.matrices.iter().map(|matrix| (matrix.sums.plain, matrix.top));
        (!self.matrices.is_empty()).then(|| relative(sums))
    }

    /// Does the same as [`Self::by_kind`], but weighted by the second moments of calibration, which gives the
    /// error of the outputs. Kinds without calibration, such as embeddings, are not weighted. Large matrices
    /// are measured on a sample of their rows.
    pub fn weighted_by_kind(&self) -> impl Iterator<Item = (MatrixKind, bool, f64)> + use<> {
        self.relative(|sums| sums.weighted.unwrap_or(sums.plain))
    }

    /// Returns the weighted error over all matrices. Returns `None` without calibration.
    pub fn weighted(&self) -> Option<f64> {
        let sums = |matrix: &MatrixError| matrix.sums.weighted.unwrap_or(matrix.sums.plain);
        let is_weighted = self.matrices.iter().any(|matrix| matrix.sums.weighted.is_some());
        let all = self.matrices.iter().map(|matrix| (sums(matrix), matrix.top));
        is_weighted.then(|| relative(all))
    }

    /// Returns the errors of a store in which each matrix is cut to the level of an allocation.
    #[must_use]
    pub fn at(&self, allocation: &Allocation) -> Self {
        let cut = |matrix: &MatrixError| {
            let level = allocation.levels(&matrix.group).get(matrix.place);
            let top = level.map_or(matrix.top, |level| matrix.top.min(*level));
            MatrixError { top, ..matrix.clone() }
        };
        Self { matrices: self.matrices.iter().map(cut).collect(), unknown: self.unknown }
    }

    /// Adds a group with its record in the journal.
    pub(super) fn add_group(&mut self, group: &Group, note: Option<&[u8]>) {
        let coded = |place: &usize| {
            let encoding = group.matrices[*place].encoding;
            matches!(encoding, Encoding::Nested { form: PlaneForm::Nested, .. })
        };
        let places: Vec<usize> = (0..group.matrices.len()).filter(coded).collect();
        let known = note.and_then(|note| decode_note(note, group.matrices.len()));
        let Some(known) = known else {
            self.unknown += places.len();
            return;
        };
        for place in places {
            let (matrix, Some(sums)) = (&group.matrices[place], known[place]) else { continue };
            let top = matrix.levels.iter().flatten().max().copied().unwrap_or(Level::L8);
            let (group, kind) = (group.id.clone(), matrix.kind);
            self.matrices.push(MatrixError { group, place, kind, top, sums });
        }
    }

    fn relative(
        &self,
        sums: fn(&MatrixSums) -> Sums,
    ) -> impl Iterator<Item = (MatrixKind, bool, f64)> + use<> {
        let mut kinds: BTreeMap<(MatrixKind, bool), Vec<(Sums, Level)>> = BTreeMap::new();
        for matrix in &self.matrices {
            let of_experts = matrix.group.expert().is_some();
            let of_kind = kinds.entry((matrix.kind, of_experts)).or_default();
            of_kind.push((sums(&matrix.sums), matrix.top));
        }
        kinds.into_iter().map(|((kind, expert), all)| (kind, expert, relative(all.into_iter())))
    }
}

fn relative(all: impl Iterator<Item = (Sums, Level)>) -> f64 {
    let add = |(weights, errors): (f64, f64), (sums, level): (Sums, Level)| {
        (weights + sums.weights, errors + sums.errors[level.index()])
    };
    let (weights, errors) = all.fold((0.0, 0.0), add);
    if weights > 0.0 { (errors / weights).sqrt() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use nestling_formats::nested::{CodecFitter, QuantizeOptions, level_errors, quantize_matrix};

    use super::*;

    #[test]
    fn what_the_journal_keeps_comes_back() {
        let sums = |start: f64| Sums { weights: start, errors: [start; 5].map(|x| x / 2.0) };
        let plain = MatrixSums { plain: sums(3.0), weighted: None };
        let both = MatrixSums { plain: sums(5.0), weighted: Some(sums(7.0)) };
        let all = [Some(plain), None, Some(both)];
        let bytes = encode(&all);
        assert_eq!(decode_note(&bytes, 3), Some(all.to_vec()));
        assert_eq!(decode_note(&bytes, 2), None);
        assert_eq!(decode_note(&bytes[..bytes.len() - 1], 3), None);
        assert_eq!(decode_note(&[9], 1), None);
        let broken = MatrixSums { plain: sums(f64::NAN), weighted: None };
        assert_eq!(decode_note(&encode(&[Some(broken)]), 1), None);
    }

    #[test]
    fn weighted_sums_are_those_of_the_outputs() {
        let (rows, cols) = (40, 64);
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let weights: Vec<f32> = (0..rows * cols).map(|_| random()).collect();
        // Some inputs are much larger than others.
        let inputs: Vec<f32> = (0..cols * 90).map(|at| random() * (at % 7) as f32).collect();
        let mut moments = SecondMoments::new(cols).unwrap();
        moments.add_rows(&inputs).unwrap();
        let options = QuantizeOptions::default();
        let mut fitter = CodecFitter::new(&options);
        fitter.add(&weights, rows, cols, None).unwrap();
        let codec = fitter.finish().unwrap();
        let coded = quantize_matrix(&weights, rows, cols, &codec, None, &options).unwrap();
        let found = MatrixSums::of(&weights, &coded, &codec, Some(&moments)).unwrap();
        let weighted = found.weighted.unwrap();
        let errors = level_errors(&weights, rows, cols, &coded, &codec, &moments).unwrap();
        let mean = f64::from(moments.mean_diagonal());
        for (found, expected) in weighted.errors.iter().zip(errors) {
            assert!((found * mean / expected - 1.0).abs() < 1e-3, "{found} {expected}");
        }
        let outputs = weights.chunks(cols).flat_map(|row| inputs.chunks(cols).map(|x| dot(x, row)));
        let outputs: f64 = outputs.map(|output| f64::from(output).powi(2)).sum();
        assert!((weighted.weights * mean / outputs - 1.0).abs() < 1e-3, "{weighted:?} {outputs}");
        let plain = MatrixSums::of(&weights, &coded, &codec, None).unwrap();
        assert_eq!((plain.plain, plain.weighted), (found.plain, None));
    }

    #[test]
    fn a_sample_is_spread_and_a_small_matrix_is_whole() {
        assert_eq!(sampled_rows(40, 64), (0..40).collect::<Vec<_>>());
        let of_large = sampled_rows(512, 1024);
        assert_eq!(of_large.len(), 64);
        assert_eq!((of_large[0], of_large[16], of_large[63]), (0, 128, 399));
    }
}
