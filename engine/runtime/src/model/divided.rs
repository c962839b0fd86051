//! Matrices of which each rank holds some rows.

use super::weights::Loader;
use nestling_core::backend::{Backend, Linear, Outputs};
use nestling_core::error::EngineError;
use nestling_core::weights::MatrixWeights;

impl<B: Backend> Loader<'_, B> {
    /// Uploads the rows that this rank holds of a matrix and its bias.
    pub(super) fn linear(
        &mut self,
        weights: &MatrixWeights,
        bias: Option<&[f32]>,
    ) -> Result<Linear<B>, EngineError> {
        let whole = weights.rows();
        let Some(rows) = self.backend.share().rows(whole) else {
            let bias = bias.map(|bias| self.backend.upload_floats(bias)).transpose()?;
            let matrix = self.backend.upload_matrix(weights, self.activations)?;
            return Ok(Linear::new(matrix, bias));
        };
        let outputs = Outputs { first: rows.start, whole };
        let bias = bias.and_then(|bias| bias.get(rows.clone()));
        let bias = bias.map(|bias| self.backend.upload_floats(bias)).transpose()?;
        let matrix = self.backend.upload_matrix(&weights.copy_rows(rows)?, self.activations)?;
        Ok(Linear { matrix, bias, outputs })
    }
}
