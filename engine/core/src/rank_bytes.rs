//! Rule of which rows of dense matrices and sliced experts a rank holds, and the sizes that follow from it.

use std::ops::Range;

use crate::group::RankShare;
use nestling_formats::store::{Encoding, Group, GroupId, Index, Matrix};
use nestling_formats::{Level, MatrixKind, Plane};

/// Returns the bytes of dense matrices' rows that other ranks hold.
pub fn bytes_elsewhere(index: &Index, level: Level, share: RankShare) -> u64 {
    index.groups().iter().map(|group| group_bytes_elsewhere(index, group, level, share)).sum()
}

/// Returns the bytes of a dense group's rows that other ranks hold; 0 for groups of other kinds.
pub fn group_bytes_elsewhere(index: &Index, group: &Group, level: Level, share: RankShare) -> u64 {
    if !matches!(group.id, GroupId::Dense { .. } | GroupId::Embedding | GroupId::Head) {
        return 0;
    }
    // Default: a level without a section in the store uses no planes.
    sliced_bytes_elsewhere(group, index.planes_at(group, level).unwrap_or(0), share)
}

/// Returns the bytes of the rows that other ranks hold of a group whose matrices are divided by rows, after its first
/// `planes` planes.
pub fn sliced_bytes_elsewhere(group: &Group, planes: usize, share: RankShare) -> u64 {
    let elsewhere =
        group.matrices.iter().map(|matrix| match held_rows(matrix.kind, matrix.rows, share) {
            None => 0,
            Some(held) => {
                bytes(matrix, planes, matrix.rows).saturating_sub(bytes(matrix, planes, held.len()))
            }
        });
    elsewhere.sum()
}

/// Returns the rows that a rank holds of a dense matrix, or one of a sliced expert, of `rows` rows, or `None` if every rank holds all: matrices of
/// single heads, and those with too few rows.
pub fn held_rows(kind: MatrixKind, rows: usize, share: RankShare) -> Option<Range<usize>> {
    let is_divided = !matches!(kind, MatrixKind::KeyUp | MatrixKind::ValueUp);
    share.rows(rows).filter(|_| is_divided)
}

/// Returns whether experts can be sliced: each rank gets some of their inner rows, or of their outputs. Rows of which
/// there are too few are on every rank.
pub fn can_slice(inner: usize, hidden: usize, share: RankShare) -> bool {
    share.rows(inner).is_some() || share.rows(hidden).is_some()
}

/// Returns the bytes of `rows` rows of a matrix, after the first `planes` planes of its group.
fn bytes(matrix: &Matrix, planes: usize, rows: usize) -> u64 {
    // Default: without planes, a matrix has no level.
    let level = planes.checked_sub(1).and_then(|last| *matrix.levels.get(last)?);
    match (matrix.encoding, level) {
        (_, None) => 0,
        (Encoding::Float(dtype), _) => (rows * matrix.cols * dtype.bytes()) as u64,
        (Encoding::Nested { layout, form, .. }, Some(level)) => {
            let planes = Plane::ALL.into_iter().take(level.index() + 1);
            let bytes =
                planes.filter_map(|plane| form.plane_bytes(layout, rows, matrix.cols, plane));
            bytes.sum::<usize>() as u64
        }
    }
}
