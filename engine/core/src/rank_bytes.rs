//! Sizes of the weights that the ranks of a model divide.

use crate::group::RankShare;
use nestling_formats::store::{Encoding, Group, GroupId, Index, Matrix};
use nestling_formats::{Level, MatrixKind, Plane};

/// Returns the bytes of dense matrices' rows that other ranks hold.
pub fn bytes_elsewhere(index: &Index, level: Level, share: RankShare) -> u64 {
    let is_dense = |id: &GroupId| matches!(id, GroupId::Dense { .. } | GroupId::Head);
    let groups = index.groups().iter().filter(|group| is_dense(&group.id));
    groups.map(|group| group_bytes_elsewhere(index, group, level, share)).sum()
}

fn group_bytes_elsewhere(index: &Index, group: &Group, level: Level, share: RankShare) -> u64 {
    // Default: a level without a section in the store uses no planes.
    let planes = index.planes_at(group, level).unwrap_or(0);
    let divided = group.matrices.iter().filter(|matrix| is_divided(matrix.kind));
    let elsewhere = divided.map(|matrix| match share.rows(matrix.rows) {
        None => 0,
        Some(held) => {
            bytes(matrix, planes, matrix.rows).saturating_sub(bytes(matrix, planes, held.len()))
        }
    });
    elsewhere.sum()
}

/// Returns true for matrices whose rows are divided: all that are multiplied as a whole with the rows of a step, but
/// for feed-forward parts, whose two products are one operation.
fn is_divided(kind: MatrixKind) -> bool {
    use MatrixKind::{Down, Embedding, Gate, KeyUp, Up, ValueUp};
    !matches!(kind, Embedding | Gate | Up | Down | KeyUp | ValueUp)
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
