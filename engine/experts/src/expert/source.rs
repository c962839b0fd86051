//! Where the weights of a model come from.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use nestling_formats::store::GroupId;
use nestling_formats::{FloatKind, Level};
use nestling_import::ModelConfig;

use super::embedding_rows::EmbeddingRows;
use super::store::{Matrices, StoreSource};
use crate::dual::ExpertSensitivities;
use crate::reads::ReadOptions;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;

/// A store or a checkpoint: hands out weights by their place in the graph.
pub trait ExpertSource: Send + Sync {
    /// The model's hyper-parameters.
    fn config(&self) -> &ModelConfig;

    /// Highest level of the model that can be asked for; none where weights are floats.
    fn level_max(&self) -> Option<Level>;

    /// The matrices of a group, read and checked. The embedding is made for gathers and all others
    /// for products; a tied head is given too.
    ///
    /// # Errors
    /// A group that is missing, damaged or cannot be read.
    fn matrices(&self, group: &GroupId) -> Result<Matrices, EngineError>;

    /// All experts of a layer; `cancel` is looked at before each.
    ///
    /// # Errors
    /// [`EngineError::Cancelled`]; as [`ExpertSource::matrices`].
    fn experts(
        &self,
        layer: u32,
        experts: u32,
        threads: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<Matrices>, EngineError> {
        read_experts(self, layer, experts, threads, cancel)
    }

    /// Plane scores of the experts; nothing where weights have no planes.
    fn sensitivities(&self) -> ExpertSensitivities {
        ExpertSensitivities::default()
    }

    /// The embedding, to be read row by row; none where it cannot be.
    ///
    /// # Errors
    /// An embedding that is damaged or cannot be read.
    fn embedding_rows(&self, options: &ReadOptions) -> Result<Option<EmbeddingRows>, EngineError> {
        let _ = options;
        Ok(None)
    }

    /// The float tensors of a layer, or of the model as a whole; row-major.
    ///
    /// # Errors
    /// As [`ExpertSource::matrices`].
    fn floats(&self, layer: Option<u32>) -> Result<Vec<(FloatKind, Vec<f32>)>, EngineError>;

    /// The store that the weights come from, where planes of experts can be had one by one.
    fn store_source(self: Arc<Self>) -> Option<Arc<StoreSource>>;
}

/// Asks a source for all experts of a layer, one by one, on several threads.
///
/// # Errors
/// [`EngineError::Cancelled`], or what the first expert that failed gives.
pub fn read_experts<S: ExpertSource + ?Sized>(
    source: &S,
    layer: u32,
    experts: u32,
    threads: usize,
    cancel: &CancelToken,
) -> Result<Vec<Matrices>, EngineError> {
    let read: Vec<OnceLock<Result<Matrices, EngineError>>> =
        (0..experts).map(|_| OnceLock::new()).collect();
    let next = AtomicU32::new(0);
    let work = || {
        loop {
            let expert = next.fetch_add(1, Ordering::Relaxed);
            // Default: all are read, or nobody waits for them.
            let Some(slot) = read.get(expert as usize).filter(|_| !cancel.is_cancelled()) else {
                return;
            };
            let _ = slot.set(source.matrices(&GroupId::expert_of(layer, expert)));
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(experts as usize) {
            // Without the thread, the others do its part.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    read.into_iter().map(|slot| slot.into_inner().unwrap_or(Err(EngineError::Cancelled))).collect()
}
