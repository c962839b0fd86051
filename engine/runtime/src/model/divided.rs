//! Matrices of which each rank holds some rows.

use std::ops::Range;

use nestling_formats::MatrixKind;
use nestling_formats::store::GroupId;
use nestling_import::ModelConfig;

use super::weights::Loader;
use nestling_core::backend::{Backend, Linear, Outputs};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::group::{ExpertDivision, RankShare};
use nestling_core::rank_bytes::held_rows;
use nestling_core::weights::MatrixWeights;
use nestling_experts::expert::StreamOptions;

/// Refuses sliced experts that are streamed.
///
/// # Errors
/// Fails with [`EngineError::SlicesStreamed`].
pub(super) fn check_division(
    division: ExpertDivision,
    share: RankShare,
    streaming: Option<&StreamOptions>,
    config: &ModelConfig,
) -> Result<(), EngineError> {
    if division == ExpertDivision::Whole || !share.is_divided() || streaming.is_none() {
        return Ok(());
    }
    let layers = config.layers.iter().filter(|layer| layer.is_mixture()).count();
    Err(EngineError::SlicesStreamed { layers })
}

impl<B: Backend> Loader<'_, B> {
    /// Loads the head, to which the embedding may be tied.
    pub(super) fn head(
        &mut self,
        vocab_size: usize,
        hidden_size: usize,
        cancel: &CancelToken,
    ) -> Result<[Linear<B>; 1], EngineError> {
        let mut head = self.group(&GroupId::Head, cancel)?;
        let head = head.take(MatrixKind::Head, vocab_size, hidden_size)?;
        Ok([self.linear(MatrixKind::Head, &head, None)?])
    }

    /// Uploads the rows of a matrix and its bias that belong to this rank's heads. Its outputs are all that the rank
    /// needs.
    pub(super) fn linear_of_heads(
        &mut self,
        weights: &MatrixWeights,
        bias: Option<&[f32]>,
        rows: Range<usize>,
    ) -> Result<Linear<B>, EngineError> {
        let bias = bias.and_then(|bias| bias.get(rows.clone()));
        let bias = bias.map(|bias| self.backend.upload_floats(bias)).transpose()?;
        let matrix = self.backend.upload_matrix(&weights.copy_rows(rows)?, self.activations)?;
        Ok(Linear::new(matrix, bias))
    }

    /// Uploads the rows that this rank holds of a matrix and its bias.
    pub(super) fn linear(
        &mut self,
        kind: MatrixKind,
        weights: &MatrixWeights,
        bias: Option<&[f32]>,
    ) -> Result<Linear<B>, EngineError> {
        let whole = weights.rows();
        let Some(rows) = held_rows(kind, whole, self.backend.share()) else {
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
