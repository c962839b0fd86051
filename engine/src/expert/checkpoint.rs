//! Weights straight from a Hugging Face checkpoint, unquantized.

use nestling_formats::checkpoint::Checkpoint;
use nestling_formats::{ExpertId, FloatId, Level, MatrixId, MatrixKind, ModelConfig};

use super::source::{ExpertSource, ExpertWeights, expert_matrix, model_matrix};
use crate::error::EngineError;
use crate::weights::{ByteRegion, FloatMatrix, MatrixWeights};

/// A checkpoint's own floats. Levels mean nothing here.
#[derive(Debug)]
pub struct CheckpointSource {
    checkpoint: Checkpoint,
}

impl CheckpointSource {
    /// Takes weights from an opened checkpoint.
    pub fn new(checkpoint: Checkpoint) -> Self {
        Self { checkpoint }
    }

    /// The checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }
}

impl ExpertSource for CheckpointSource {
    fn config(&self) -> &ModelConfig {
        self.checkpoint.config()
    }

    fn level_max(&self) -> Option<Level> {
        None
    }

    fn dense(&self, id: MatrixId) -> Result<MatrixWeights, EngineError> {
        let tied = id.kind == MatrixKind::Head && self.config().tie_word_embeddings;
        let id = if tied { model_matrix(MatrixKind::Embedding) } else { id };
        let tensor = self.checkpoint.matrix(id)?;
        let size = |at: usize| tensor.shape.get(at).and_then(|&n| usize::try_from(n).ok());
        let (rows, cols) = (size(0).unwrap_or(0), size(1).unwrap_or(0));
        let region = ByteRegion::from_vec(self.checkpoint.read_bytes(tensor)?);
        Ok(MatrixWeights::Float(FloatMatrix::new(rows, cols, tensor.dtype, region)?))
    }

    fn floats(&self, id: FloatId) -> Result<Vec<f32>, EngineError> {
        Ok(self.checkpoint.read_float(id)?)
    }

    fn expert(&self, id: ExpertId) -> Result<ExpertWeights, EngineError> {
        Ok(ExpertWeights {
            gate: self.dense(expert_matrix(MatrixKind::Gate, id))?,
            up: self.dense(expert_matrix(MatrixKind::Up, id))?,
            down: self.dense(expert_matrix(MatrixKind::Down, id))?,
        })
    }
}
