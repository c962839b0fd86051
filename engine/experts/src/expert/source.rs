//! Sources of a model's weights.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use nestling_formats::store::GroupId;
use nestling_formats::{FloatKind, Level};
use nestling_import::ModelConfig;

use super::embedding_rows::EmbeddingRows;
use super::store::{Matrices, StoreSource};
use crate::reads::ReadOptions;
use crate::residency::Placement;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::group::RankShare;
use nestling_levels::dual::ExpertSensitivities;

/// A source of weights (store or checkpoint), addressed by their place in the graph.
pub trait ExpertSource: Send + Sync {
    /// Returns the model's hyper-parameters.
    fn config(&self) -> &ModelConfig;

    /// Returns the highest level of the model available, or `None` for float weights.
    fn level_max(&self) -> Option<Level>;

    /// Returns whether the head is the embedding, one matrix for gathers and products.
    fn is_tied(&self) -> bool {
        self.config().tie_word_embeddings
    }

    /// Reads and verifies the matrices of a group. The embedding is laid out for gathers and other matrices
    /// for products. A tied head is available as a group.
    ///
    /// # Errors
    /// Returns an error if the group is missing, damaged or cannot be read.
    fn matrices(&self, group: &GroupId) -> Result<Matrices, EngineError>;

    /// Reads experts of a layer. `cancel` is checked before each expert.
    ///
    /// # Errors
    /// [`EngineError::Cancelled`], and the errors of [`ExpertSource::matrices`].
    fn experts(
        &self,
        layer: u32,
        experts: &[u32],
        threads: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<Matrices>, EngineError> {
        read_experts(self, layer, experts, threads, cancel)
    }

    /// Returns the ranks of the experts. All ranks of a model get the same.
    fn placement(&self, share: RankShare) -> Placement {
        Placement::in_turn(share)
    }

    /// Returns the plane scores of the experts; empty if weights have no planes.
    fn sensitivities(&self) -> ExpertSensitivities {
        ExpertSensitivities::default()
    }

    /// Opens the embedding for row-wise reads, or returns `None` if that is not supported.
    ///
    /// # Errors
    /// Returns an error if the embedding is damaged or cannot be read.
    fn embedding_rows(&self, options: &ReadOptions) -> Result<Option<EmbeddingRows>, EngineError> {
        let _ = options;
        Ok(None)
    }

    /// Reads the float tensors of a layer, or of the model as a whole. Tensors are row-major.
    ///
    /// # Errors
    /// Same errors as [`ExpertSource::matrices`].
    fn floats(&self, layer: Option<u32>) -> Result<Vec<(FloatKind, Vec<f32>)>, EngineError>;

    /// Returns the store of the weights, if planes of experts can be read individually.
    fn store_source(self: Arc<Self>) -> Option<Arc<StoreSource>>;
}

/// Reads experts of a layer from a source, one expert at a time, on several threads.
///
/// # Errors
/// [`EngineError::Cancelled`], or the error of the first expert that failed.
pub fn read_experts<S: ExpertSource + ?Sized>(
    source: &S,
    layer: u32,
    experts: &[u32],
    threads: usize,
    cancel: &CancelToken,
) -> Result<Vec<Matrices>, EngineError> {
    let read: Vec<OnceLock<Result<Matrices, EngineError>>> =
        experts.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let next = experts.get(index).zip(read.get(index)).filter(|_| !cancel.is_cancelled());
            // Default: all experts are taken, or the read was cancelled.
            let Some((expert, slot)) = next else { return };
            let _ = slot.set(source.matrices(&GroupId::expert_of(layer, *expert)));
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(experts.len()) {
            // If a thread cannot be started, the others do its work.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    read.into_iter().map(|slot| slot.into_inner().unwrap_or(Err(EngineError::Cancelled))).collect()
}
