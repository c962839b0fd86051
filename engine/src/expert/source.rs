//! Where the weights of a model come from.

use nestling_formats::{ExpertId, FloatId, Level, MatrixId, MatrixKind, ModelConfig};

use crate::error::EngineError;
use crate::weights::MatrixWeights;

/// The matrices of one expert.
#[derive(Clone, Debug)]
pub struct ExpertWeights {
    /// `[I, D]`.
    pub gate: MatrixWeights,
    /// `[I, D]`.
    pub up: MatrixWeights,
    /// `[D, I]`.
    pub down: MatrixWeights,
}

/// A store or a checkpoint: hands out weights by name of their place in the graph.
pub trait ExpertSource: Send + Sync {
    /// The model's hyper-parameters.
    fn config(&self) -> &ModelConfig;

    /// Highest level of the model that can be asked for; none where weights are floats.
    fn level_max(&self) -> Option<Level>;

    /// A dense matrix. The embedding is made for gathers and every other matrix for products; a
    /// tied head is given too.
    ///
    /// # Errors
    /// A matrix that is missing, damaged, of the wrong shape or cannot be read.
    fn dense(&self, id: MatrixId) -> Result<MatrixWeights, EngineError>;

    /// A float tensor, row-major.
    ///
    /// # Errors
    /// As [`ExpertSource::dense`].
    fn floats(&self, id: FloatId) -> Result<Vec<f32>, EngineError>;

    /// The matrices of an expert.
    ///
    /// # Errors
    /// As [`ExpertSource::dense`].
    fn expert(&self, id: ExpertId) -> Result<ExpertWeights, EngineError>;
}

/// The id of a dense matrix of a layer.
pub fn layer_matrix(kind: MatrixKind, layer: u32) -> MatrixId {
    MatrixId { kind, layer: Some(layer), expert: None }
}

/// The id of a matrix that belongs to no layer.
pub fn model_matrix(kind: MatrixKind) -> MatrixId {
    MatrixId { kind, layer: None, expert: None }
}

/// The id of an expert's matrix.
pub fn expert_matrix(kind: MatrixKind, id: ExpertId) -> MatrixId {
    MatrixId { kind, layer: Some(id.layer), expert: Some(id.expert) }
}
