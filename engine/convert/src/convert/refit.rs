//! Second fit of tables, to codes that were chosen against second moments.

use nestling_formats::nested::{
    NestedCodec, NestedError, TILE_ROWS, TableRefit, quantize_calibrated,
};

use super::block::Block;
use super::inputs::Inputs;
use super::{Conversion, ConvertError};
use crate::calibrate::Calibrator;

/// Number of matrices of a codec that are sampled, and rows of each.
const MATRICES: usize = 8;
const ROWS: usize = 8 * TILE_ROWS;

impl Conversion<'_> {
    /// Codes a sample of the matrices that share a codec and refits its tables to those codes. Without
    /// calibration, the codec is unchanged.
    pub(super) fn refit(
        &self,
        codec: &mut NestedCodec,
        blocks: &[Block],
        calibrator: Option<&Calibrator<'_>>,
    ) -> Result<(), ConvertError> {
        let mut refit = TableRefit::new(codec);
        for block in blocks.iter().step_by(blocks.len().div_ceil(MATRICES).max(1)) {
            let block = block.first_rows(ROWS);
            let mut inputs = Inputs::new(self, calibrator);
            // Default: nothing is refitted without moments.
            let Some(known) = inputs.of(block.id, block.cols)? else { return Ok(()) };
            let weights = self.read(&block)?;
            let add = |refit: &mut TableRefit| -> Result<(), NestedError> {
                let (rows, cols) = (block.rows(), block.cols);
                let options = self.options.quantize_of(block.id);
                let matrix = quantize_calibrated(&weights, rows, cols, codec, &known, &options)?;
                refit.add(&weights, &matrix, &known)
            };
            add(&mut refit)
                .map_err(|source| ConvertError::Quantize { matrix: block.id, source })?;
        }
        refit.finish(codec);
        Ok(())
    }
}
