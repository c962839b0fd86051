//! Blocks of rows that are coded together.

use nestling_formats::MatrixId;
use nestling_formats::nested::TILE_ROWS;
use nestling_formats::store::{GroupId, Matrix};

/// Number of weights that are coded between two checks of the cancel token.
const BLOCK_WEIGHTS: usize = 1 << 20;

/// Rows `from..to` of a matrix of the checkpoint.
#[derive(Clone, Copy)]
pub(super) struct Block {
    /// Id of the matrix, in the checkpoint and in the store.
    pub id: MatrixId,
    pub from: usize,
    pub to: usize,
    pub cols: usize,
}

impl Block {
    pub fn rows(&self) -> usize {
        self.to - self.from
    }

    /// Limits the block to its first `rows` rows.
    pub fn first_rows(self, rows: usize) -> Self {
        Self { to: self.to.min(self.from + rows), ..self }
    }
}

/// Splits a matrix into blocks of whole tiles.
pub(super) fn blocks(id: MatrixId, matrix: &Matrix) -> impl Iterator<Item = Block> + use<> {
    let (rows, cols) = (matrix.rows, matrix.cols);
    let step = (BLOCK_WEIGHTS / cols / TILE_ROWS).max(1) * TILE_ROWS;
    let to = move |from: usize| rows.min(from + step);
    (0..rows).step_by(step).map(move |from| Block { id, from, to: to(from), cols })
}

pub(crate) fn matrix_id(group: &GroupId, matrix: &Matrix) -> MatrixId {
    MatrixId { kind: matrix.kind, layer: group.layer(), expert: group.expert() }
}
