//! Matrices whose blocks are stored exactly: bits are moved and no weight is rounded.

use nestling_formats::MatrixId;
use nestling_formats::nested::ScaledRows;
use nestling_formats::store::Matrix;

use super::block::{Block, blocks};
use super::{Conversion, ConvertError, work};

impl Conversion<'_> {
    /// Reads the integers of a matrix of the checkpoint on `threads` threads.
    pub(super) fn scaled_rows(
        &self,
        id: MatrixId,
        matrix: &Matrix,
        threads: usize,
    ) -> Result<ScaledRows, ConvertError> {
        let blocks: Vec<Block> = blocks(id, matrix).collect();
        let place = self.checkpoint.matrix(id)?;
        let read = |index: usize| {
            self.check_cancelled()?;
            let block = &blocks[index];
            Ok(self.checkpoint.read_scaled_rows(&place, block.from, block.rows())?)
        };
        Ok(join(work::map(threads, blocks.len(), &read)?))
    }
}

fn join(parts: Vec<ScaledRows>) -> ScaledRows {
    let mut parts = parts.into_iter();
    // Default: no plan contains a matrix without rows.
    let mut whole = parts.next().unwrap_or_default();
    for part in parts {
        whole.rows += part.rows;
        whole.codes.extend(part.codes);
        whole.scales.extend(part.scales);
        whole.minima.extend(part.minima);
        whole.sub_scales.extend(part.sub_scales);
        whole.sub_minima.extend(part.sub_minima);
    }
    whole
}
