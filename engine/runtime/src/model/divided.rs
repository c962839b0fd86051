//! Matrices of which each rank holds some rows.

use nestling_formats::MatrixKind;
use nestling_formats::store::GroupId;

use super::Embedding;
use super::weights::Loader;
use nestling_core::backend::{Backend, Linear, Outputs};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::weights::MatrixWeights;

impl<B: Backend> Loader<'_, B> {
    /// Loads the head. If the embedding is tied to it, each rank looks up rows of all tokens and holds all rows.
    pub(super) fn head(
        &mut self,
        embedding: &Embedding<B>,
        vocab_size: usize,
        hidden_size: usize,
        cancel: &CancelToken,
    ) -> Result<[Linear<B>; 1], EngineError> {
        let mut head = self.group(&GroupId::Head, cancel)?;
        let head = head.take(MatrixKind::Head, vocab_size, hidden_size)?;
        Ok([match embedding {
            Embedding::Head => {
                Linear::new(self.backend.upload_matrix(&head, self.activations)?, None)
            }
            Embedding::Held(_) | Embedding::Stored(_) => self.linear(&head, None)?,
        }])
    }

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
