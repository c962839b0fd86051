//! Implementation of [`ExpertSource`] for stores.

use std::sync::Arc;

use nestling_formats::memory::try_zeroed;
use nestling_formats::nested::Layout;
use nestling_formats::store::{GroupId, PartItem};
use nestling_formats::{FloatKind, Level, MatrixKind, Plane};
use nestling_import::ModelConfig;

use super::embedding_rows::EmbeddingRows;
use super::source::ExpertSource;
#[cfg(not(target_family = "wasm"))]
use super::source::read_experts;
use super::store::{Matrices, StoreSource};
use super::tiled::tiled;
use crate::reads::ReadOptions;
use crate::residency::Placement;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::group::RankShare;
use nestling_core::weights::MatrixWeights;
use nestling_levels::dual::ExpertSensitivities;

impl ExpertSource for StoreSource {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn level_max(&self) -> Option<Level> {
        Some(self.level)
    }

    /// A store may hold a tied head beside the embedding, with codes of its own.
    fn is_tied(&self) -> bool {
        self.config.tie_word_embeddings && self.store.group(&GroupId::Head).is_none()
    }

    fn matrices(&self, id: &GroupId) -> Result<Matrices, EngineError> {
        if *id == GroupId::Head && self.is_tied() {
            return self.tied_head();
        }
        let group = self.group(id)?;
        #[cfg(not(target_family = "wasm"))]
        if let Some(mapped) = &self.mapped {
            return self.map(mapped, group);
        }
        let read = self.read(&[group], 1, &CancelToken::new())?;
        let missing = || EngineError::mismatch(id.to_string(), "in the store", "missing");
        read.into_iter().next().ok_or_else(missing)
    }

    fn experts(
        &self,
        layer: u32,
        experts: &[u32],
        threads: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<Matrices>, EngineError> {
        #[cfg(not(target_family = "wasm"))]
        if self.mapped.is_some() {
            return read_experts(self, layer, experts, threads, cancel);
        }
        let groups = experts.iter().map(|expert| self.group(&GroupId::expert_of(layer, *expert)));
        self.read(&groups.collect::<Result<Vec<_>, _>>()?, threads, cancel)
    }

    fn placement(&self, share: RankShare) -> Placement {
        Placement::of_index(self.store.index(), &self.config, share)
    }

    fn sensitivities(&self) -> ExpertSensitivities {
        ExpertSensitivities::of_index(self.store.index())
    }

    fn embedding_rows(&self, options: &ReadOptions) -> Result<Option<EmbeddingRows>, EngineError> {
        #[cfg(not(target_family = "wasm"))]
        if self.mapped.is_some() {
            return Ok(None);
        }
        let group = self.group(&GroupId::Embedding)?;
        let Some(matrix) = group.matrices.first() else { return Ok(None) };
        let mut levels = self.levels(group, matrix);
        if let Some(cap) = self.allocated_levels(group).first() {
            levels = levels.map(|level| level.min(*cap));
        }
        EmbeddingRows::open(&self.store, group, levels, self.level, options)
    }

    fn floats(&self, layer: Option<u32>) -> Result<Vec<(FloatKind, Vec<f32>)>, EngineError> {
        let Some(group) = self.store.group(&GroupId::Floats { layer }) else {
            return Ok(Vec::new());
        };
        let missing = || EngineError::mismatch(group.id.to_string(), "in the store", "missing");
        let extent = self.store.extent(group, Plane::P2).ok_or_else(missing)?;
        let bytes = self.store.read_extent_vec(extent)?;
        let mut list = Vec::with_capacity(group.tensors.len());
        for part in group.parts(Plane::P2).ok_or_else(missing)? {
            let PartItem::Tensor { tensor } = part.item else { continue };
            let tensor = group.tensors.get(tensor).ok_or_else(missing)?;
            let mut values = try_zeroed("a float tensor", tensor.shape.iter().product())?;
            tensor.dtype.decode(bytes.get(part.range).ok_or_else(missing)?, &mut values);
            list.push((tensor.kind, values));
        }
        Ok(list)
    }

    fn store_source(self: Arc<Self>) -> Option<Arc<StoreSource>> {
        Some(self)
    }
}

impl StoreSource {
    /// Returns the embedding as the head, laid out for products.
    fn tied_head(&self) -> Result<Matrices, EngineError> {
        let embedding = self.matrices(&GroupId::Embedding)?;
        let mut list = Vec::new();
        for (_, matrix) in embedding.list {
            let matrix = match matrix {
                MatrixWeights::Nested(matrix) if matrix.layout() == Layout::RowMajor => {
                    MatrixWeights::Nested(tiled(&matrix)?)
                }
                matrix => matrix,
            };
            list.push((MatrixKind::Head, matrix));
        }
        Ok(Matrices { group: GroupId::Head, list })
    }
}
