//! Rule of which rows of dense matrices and sliced experts a rank holds, and the sizes that follow from it.

use std::ops::Range;

use crate::group::RankShare;
use crate::kv_heads::{HeldHeads, KvDivision};
use nestling_formats::store::{Encoding, Group, GroupId, Index, Matrix};
use nestling_formats::{Level, MatrixKind, Plane};
use nestling_import::ModelConfig;

/// Division of a model's dense matrices over ranks.
#[derive(Clone, Copy, Debug)]
pub struct DenseDivision<'a> {
    /// Model.
    pub config: &'a ModelConfig,
    /// Division of keys and values.
    pub kv: KvDivision,
    /// Share of the rank.
    pub share: RankShare,
}

impl DenseDivision<'_> {
    /// Returns the heads of a layer that the rank computes, or `None` if every rank computes all.
    pub fn held_heads(&self, layer: u32) -> Option<HeldHeads> {
        let layer = self.config.layers.get(layer as usize)?;
        self.kv.held_heads(layer, self.share)
    }

    /// Returns the rows that the rank holds of a matrix of a dense group, or `None` if every rank holds all.
    pub fn held_rows(
        &self,
        group: &GroupId,
        kind: MatrixKind,
        rows: usize,
    ) -> Option<Range<usize>> {
        let heads = match group {
            GroupId::Dense { layer } => self.held_heads(*layer),
            _ => None,
        };
        let of_heads = heads.and_then(|heads| heads.rows(kind));
        of_heads.or_else(|| held_rows(kind, rows, self.share))
    }

    /// Returns the bytes of dense matrices' rows that other ranks hold.
    pub fn bytes_elsewhere(&self, index: &Index, level: Level) -> u64 {
        index.groups().iter().map(|group| self.group_bytes_elsewhere(index, group, level)).sum()
    }

    /// Returns the bytes of a dense group's rows that other ranks hold; 0 for groups of other kinds.
    pub fn group_bytes_elsewhere(&self, index: &Index, group: &Group, level: Level) -> u64 {
        if !matches!(group.id, GroupId::Dense { .. } | GroupId::Embedding | GroupId::Head) {
            return 0;
        }
        // Default: a level without a section in the store uses no planes.
        let planes = index.planes_at(group, level).unwrap_or(0);
        elsewhere(group, planes, |matrix| self.held_rows(&group.id, matrix.kind, matrix.rows))
    }
}

/// Returns the bytes of the rows that other ranks hold of a group whose matrices are divided by rows, after its first
/// `planes` planes.
pub fn sliced_bytes_elsewhere(group: &Group, planes: usize, share: RankShare) -> u64 {
    elsewhere(group, planes, |matrix| held_rows(matrix.kind, matrix.rows, share))
}

fn elsewhere(group: &Group, planes: usize, held: impl Fn(&Matrix) -> Option<Range<usize>>) -> u64 {
    let elsewhere = group.matrices.iter().map(|matrix| match held(matrix) {
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
