//! Unquantized weights of a Hugging Face checkpoint.

use std::borrow::Borrow;
use std::sync::Arc;

use nestling_formats::store::GroupId;
use nestling_formats::{ExpertId, FloatKind, Level, MatrixId, MatrixKind};
use nestling_import::ModelConfig;
use nestling_import::checkpoint::Checkpoint;

use super::source::ExpertSource;
use super::store::{Matrices, StoreSource};
use nestling_core::error::EngineError;
use nestling_core::weights::{ByteRegion, FloatMatrix, MatrixWeights};

/// Source that returns a checkpoint's floats, owned or borrowed. Levels do not apply.
#[derive(Debug)]
pub struct CheckpointSource<C = Checkpoint> {
    checkpoint: C,
}

impl<C: Borrow<Checkpoint>> CheckpointSource<C> {
    /// Creates a source from an opened checkpoint.
    pub fn new(checkpoint: C) -> Self {
        Self { checkpoint }
    }

    /// Returns the checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint {
        self.checkpoint.borrow()
    }

    fn matrix(&self, id: MatrixId) -> Result<MatrixWeights, EngineError> {
        let place = self.checkpoint().matrix(id)?;
        let region = ByteRegion::from_vec(self.checkpoint().read_matrix_bytes(id)?);
        let (rows, cols) = (place.rows(), place.cols());
        Ok(MatrixWeights::Float(FloatMatrix::new(rows, cols, place.dtype(), region)?))
    }
}

impl<C: Borrow<Checkpoint> + Send + Sync> ExpertSource for CheckpointSource<C> {
    fn config(&self) -> &ModelConfig {
        self.checkpoint().config()
    }

    fn level_max(&self) -> Option<Level> {
        None
    }

    fn matrices(&self, group: &GroupId) -> Result<Matrices, EngineError> {
        let shape = self.checkpoint().shape().matrices.iter().map(|matrix| matrix.id);
        let mut list = Vec::new();
        for id in shape.filter(|id| group_of(*id).as_ref() == Some(group)) {
            list.push((id.kind, self.matrix(id)?));
        }
        if list.is_empty() && *group == GroupId::Head {
            let id = MatrixId { kind: MatrixKind::Embedding, layer: None, expert: None };
            list.push((MatrixKind::Head, self.matrix(id)?));
        }
        Ok(Matrices { group: group.clone(), list })
    }

    fn store_source(self: Arc<Self>) -> Option<Arc<StoreSource>> {
        None
    }

    fn floats(&self, layer: Option<u32>) -> Result<Vec<(FloatKind, Vec<f32>)>, EngineError> {
        let shape = self.checkpoint().shape().floats.iter().map(|float| float.id);
        let ids = shape.filter(|id| id.layer == layer);
        ids.map(|id| Ok((id.kind, self.checkpoint().read_float(id)?))).collect()
    }
}

fn group_of(id: MatrixId) -> Option<GroupId> {
    match (id.kind, id.layer, id.expert) {
        (MatrixKind::Embedding, ..) => Some(GroupId::Embedding),
        (MatrixKind::Head, ..) => Some(GroupId::Head),
        (_, Some(layer), Some(expert)) => Some(GroupId::Expert(ExpertId { layer, expert })),
        (_, Some(layer), None) => Some(GroupId::Dense { layer }),
        (_, None, _) => None,
    }
}
