//! Order of an expert's hidden neurons, which determines the rows of a tile and the columns of a group.
//!
//! A hidden neuron is one row of gate, one row of up and one column of down. Permuting all three consistently
//! changes only the order of a sum. The order is folded into the matrices, so kernels are unaffected.

use super::{GROUP, NestedError, SecondMoments, TILE_ROWS};
use crate::memory::try_with_capacity;

/// Order of an expert's hidden neurons, applied before its matrices are coded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NeuronOrder {
    /// The order of the checkpoint.
    #[default]
    Source,
    /// Descending magnitude of the neurons' columns of down. The 32 columns of a group, which share a scale,
    /// are then similar. The two tiles of each group are split by the shape of their rows.
    Magnitude,
    /// Shape of the neurons' rows of gate and up: the mean of `rms / peak` over groups, descending. The 16
    /// rows of a tile, which share a table, are then similar.
    Shape,
}

impl NeuronOrder {
    /// All orders.
    pub const ALL: [Self; 3] = [Self::Source, Self::Magnitude, Self::Shape];

    /// Returns the name of the order in settings and creation parameters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Magnitude => "magnitude",
            Self::Shape => "shape",
        }
    }

    /// Returns the source neuron of each position, `[hidden]`, a permutation.
    ///
    /// `gate` and `up` are `[hidden, dim]`, `down` is `[dim, hidden]`. The result depends only on the
    /// arguments; the sort is stable.
    ///
    /// # Errors
    /// [`NestedError::Length`] if lengths do not match.
    pub fn order(
        self,
        gate: &[f32],
        up: &[f32],
        down: &[f32],
        hidden: usize,
    ) -> Result<Vec<u32>, NestedError> {
        // Default: without hidden neurons no length is valid.
        let dim = gate.len().checked_div(hidden).unwrap_or(0);
        let too_large = |_| NestedError::Shape { rows: hidden, cols: dim };
        for (what, found) in [("gate", gate), ("up", up), ("down", down)] {
            if found.len() != dim * hidden || found.is_empty() {
                let expected = dim.max(1) * hidden;
                return Err(NestedError::Length { what, expected, found: found.len() });
            }
        }
        let mut order: Vec<u32> = (0..u32::try_from(hidden).map_err(too_large)?).collect();
        if self == Self::Source {
            return Ok(order);
        }
        let shapes: Vec<f32> = gate
            .chunks_exact(dim)
            .zip(up.chunks_exact(dim))
            .map(|(gate, up)| flatness(gate) + flatness(up))
            .collect();
        let by = |keys: &[f32], part: &mut [u32]| {
            part.sort_by(|a, b| keys[*b as usize].total_cmp(&keys[*a as usize]).then(a.cmp(b)));
        };
        if self == Self::Shape {
            by(&shapes, &mut order);
            return Ok(order);
        }
        let mut peaks = vec![0.0f32; hidden];
        for row in down.chunks_exact(hidden) {
            for (peak, weight) in peaks.iter_mut().zip(row) {
                *peak = peak.max(weight.abs());
            }
        }
        by(&peaks, &mut order);
        order.chunks_mut(GROUP).for_each(|group| by(&shapes, group));
        Ok(order)
    }
}

/// Returns the mean of `rms / peak` over the groups of a row: 1 if all magnitudes are equal.
fn flatness(row: &[f32]) -> f32 {
    let flatness = row.chunks(GROUP).map(|group| {
        let peak = group.iter().fold(0.0f32, |peak, weight| peak.max(weight.abs()));
        let energy: f32 = group.iter().map(|weight| weight * weight).sum();
        if peak > 0.0 { (energy / group.len() as f32).sqrt() / peak } else { 1.0 }
    });
    flatness.sum::<f32>() / row.len().div_ceil(GROUP).max(1) as f32
}

/// Returns rows `order` of a matrix `[rows, cols]`.
///
/// # Errors
/// [`NestedError`] if the matrix has an incomplete row or an index is out of range.
pub fn reorder_rows(matrix: &[f32], cols: usize, order: &[u32]) -> Result<Vec<f32>, NestedError> {
    let rows = check_whole(matrix, cols)?;
    let mut out = try_with_capacity("a matrix in another order", order.len() * cols)?;
    for row in order {
        let row = in_range("row", *row, rows)?;
        out.extend_from_slice(&matrix[row * cols..][..cols]);
    }
    Ok(out)
}

/// Returns columns `order` of a matrix `[rows, cols]`.
///
/// # Errors
/// [`NestedError`] if the matrix has an incomplete row or an index is out of range.
pub fn reorder_columns(
    matrix: &[f32],
    cols: usize,
    order: &[u32],
) -> Result<Vec<f32>, NestedError> {
    let rows = check_whole(matrix, cols)?;
    let order: Vec<usize> =
        order.iter().map(|col| in_range("column", *col, cols)).collect::<Result<_, _>>()?;
    let mut out = try_with_capacity("a matrix in another order", rows * order.len())?;
    for row in matrix.chunks_exact(cols) {
        out.extend(order.iter().map(|col| row[*col]));
    }
    Ok(out)
}

/// Returns the second moments of permuted inputs.
///
/// # Errors
/// [`NestedError`] unless `order` has one entry per input, all of them in range.
pub fn reorder_moments(
    moments: &SecondMoments,
    order: &[u32],
) -> Result<SecondMoments, NestedError> {
    let dim = moments.dim();
    if order.len() != dim {
        return Err(NestedError::Length { what: "order", expected: dim, found: order.len() });
    }
    let rows = reorder_rows(moments.values(), dim, order)?;
    SecondMoments::from_upper(dim, reorder_columns(&rows, dim, order)?, moments.count())
}

fn check_whole(matrix: &[f32], cols: usize) -> Result<usize, NestedError> {
    match matrix.len().checked_div(cols) {
        Some(rows) if rows * cols == matrix.len() => Ok(rows),
        // Default: without columns there are no rows.
        _ => Err(NestedError::Shape { rows: matrix.len().checked_div(cols).unwrap_or(0), cols }),
    }
}

fn in_range(what: &'static str, index: u32, limit: usize) -> Result<usize, NestedError> {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    if index < limit { Ok(index) } else { Err(NestedError::OutOfRange { what, index, limit }) }
}

const _: () = assert!(GROUP == 2 * TILE_ROWS);
