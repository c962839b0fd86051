//! Second fit of tables: to codes that were chosen against second moments, then to the size of the weights.

use nestling_formats::nested::{
    InputCalibration, NestedCodec, NestedError, QuantizedMatrix, Shrinkage, TILE_ROWS, TableRefit,
    quantize_calibrated, quantize_matrix, round_tables,
};

use super::block::Block;
use super::inputs::Inputs;
use super::{Conversion, ConvertError};
use crate::calibrate::Calibrator;

/// Number of matrices of a codec that are sampled, and rows of each.
const MATRICES: usize = 8;
const ROWS: usize = 8 * TILE_ROWS;

/// Receives the weights of a block, its codes and the moments of its inputs, if they are known.
type Visitor<'a> = &'a mut dyn FnMut(
    &[f32],
    &QuantizedMatrix,
    Option<&InputCalibration<'_>>,
) -> Result<(), NestedError>;

/// Number of times that the sample is coded to rescale the tables.
const RESCALINGS: usize = 2;

impl Conversion<'_> {
    /// Codes a sample of the matrices that share a codec and refits its tables to those codes if there are moments. In a
    /// model with experts, rescales the tables until decoded weights are as large as their sources; in a dense one that
    /// is worse (docs/perf/059).
    pub(super) fn refit(
        &self,
        codec: &mut NestedCodec,
        blocks: &[Block],
        calibrator: Option<&Calibrator<'_>>,
    ) -> Result<(), ConvertError> {
        let sample = blocks.iter().step_by(blocks.len().div_ceil(MATRICES).max(1));
        let sample: Vec<Block> = sample.map(|block| block.first_rows(ROWS)).collect();
        let has_experts = self.checkpoint.config().has_experts();
        if calibrator.is_some() {
            let mut refit = TableRefit::new(codec);
            self.code_sample(codec, &sample, calibrator, &mut |weights, matrix, known| {
                // Default: nothing is refitted without moments.
                known.map_or(Ok(()), |known| refit.add(weights, matrix, known))
            })?;
            if !has_experts {
                refit.finish_strided(codec);
                return Ok(());
            }
            refit.finish(codec);
        }
        if !has_experts {
            round_tables(codec);
            return Ok(());
        }
        for _ in 0..RESCALINGS {
            let mut shrinkage = Shrinkage::new(codec);
            self.code_sample(codec, &sample, calibrator, &mut |weights, matrix, _| {
                shrinkage.add(weights, matrix, codec)
            })?;
            shrinkage.rescale(codec);
        }
        Ok(())
    }

    /// Codes the blocks with the codec as it is.
    fn code_sample(
        &self,
        codec: &NestedCodec,
        blocks: &[Block],
        calibrator: Option<&Calibrator<'_>>,
        add: Visitor<'_>,
    ) -> Result<(), ConvertError> {
        for block in blocks {
            let mut inputs = Inputs::new(self, calibrator);
            let known = inputs.of(block.id, block.cols)?;
            let weights = self.read(block)?;
            let (rows, cols) = (block.rows(), block.cols);
            let options = self.quantize_of(block.id);
            let coded = match &known {
                Some(known) => quantize_calibrated(&weights, rows, cols, codec, known, &options),
                None => quantize_matrix(&weights, rows, cols, codec, None, &options),
            };
            coded
                .and_then(|matrix| add(&weights, &matrix, known.as_ref()))
                .map_err(|source| ConvertError::Quantize { matrix: block.id, source })?;
        }
        Ok(())
    }
}
