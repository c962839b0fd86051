//! Where the weights of a model come from.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use nestling_formats::store::{GroupId, Store};
use nestling_formats::{ExpertId, FloatKind, Level, MatrixKind, Plane};
use nestling_import::ModelConfig;

use super::embedding_rows::EmbeddingRows;
use crate::dual::ExpertSensitivities;
use crate::reads::{ArrivedPlane, ReadOptions};
use nestling_core::backend::{ExpertShape, PlanePart};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::weights::{ActivationMode, MatrixWeights};

/// The matrices of one group: an expert's, a layer's, the embedding or the head.
#[derive(Clone, Debug)]
pub struct Matrices {
    /// The group that they belong to.
    pub group: GroupId,
    /// In the order of the source.
    pub list: Vec<(MatrixKind, MatrixWeights)>,
}

impl Matrices {
    /// Takes out the matrix of that kind.
    ///
    /// # Errors
    /// [`EngineError::Mismatch`] if the group has none, or one of another size.
    pub fn take(
        &mut self,
        kind: MatrixKind,
        rows: usize,
        cols: usize,
    ) -> Result<MatrixWeights, EngineError> {
        let what = || format!("{kind:?} of {}", self.group);
        let Some(at) = self.list.iter().position(|(found, _)| *found == kind) else {
            return Err(EngineError::mismatch(what(), "a matrix", "none"));
        };
        let found = (self.list[at].1.rows(), self.list[at].1.cols());
        if found != (rows, cols) {
            let found = format!("[{}, {}]", found.0, found.1);
            return Err(EngineError::mismatch(what(), format!("[{rows}, {cols}]"), found));
        }
        Ok(self.list.swap_remove(at).1)
    }

    /// Makes a matrix one of another kind too, without a copy of its weights.
    pub fn share(&mut self, kind: MatrixKind, other: MatrixKind) {
        let found = self.list.iter().find(|(found, _)| *found == kind);
        let matrix = found.map(|(_, matrix)| (other, matrix.clone()));
        self.list.extend(matrix);
    }
}

/// Whether what is in a plane P2 was looked at before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// Not yet: scales, steps and tables are checked.
    Check,
    /// It was, and its checksum is the same.
    Known,
}

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

    /// What planes of the experts are worth; nothing where weights have no planes.
    fn sensitivities(&self) -> ExpertSensitivities {
        ExpertSensitivities::default()
    }

    /// The store, where planes of experts can be had one by one.
    fn store(&self) -> Option<&Arc<Store>> {
        None
    }

    /// The embedding, to be read row by row; none where it cannot be.
    ///
    /// # Errors
    /// An embedding that is damaged or cannot be read.
    fn embedding_rows(&self, options: &ReadOptions) -> Result<Option<EmbeddingRows>, EngineError> {
        let _ = options;
        Ok(None)
    }

    /// How many of an expert's planes, from the first, a level needs.
    fn planes_of(&self, expert: ExpertId, level: Level) -> usize {
        let _ = (expert, level);
        0
    }

    /// The matrices of an expert, made of planes that were read and verified, from the first on.
    ///
    /// # Errors
    /// A source without a store; planes that do not make the expert.
    fn bind_expert(
        &self,
        expert: ExpertId,
        planes: &[Arc<ArrivedPlane>],
        scan: Scan,
    ) -> Result<Matrices, EngineError> {
        let _ = (planes, scan);
        let what = GroupId::Expert(expert).to_string();
        Err(EngineError::mismatch(what, "a source that is a store", "another"))
    }

    /// What a plane of an expert is made of: planes of matrices, each with its bytes there.
    ///
    /// # Errors
    /// [`EngineError::Internal`] where the sizes of its parts cannot be added up.
    fn plane_parts(&self, expert: ExpertId, plane: Plane) -> Result<Vec<PlanePart>, EngineError> {
        let _ = (expert, plane);
        Ok(Vec::new())
    }

    /// What a slot for any expert of a layer must have room for; none for a layer without experts.
    ///
    /// # Errors
    /// A source that is no store; experts that differ in more than their planes.
    fn expert_shape(
        &self,
        layer: usize,
        activations: ActivationMode,
    ) -> Result<Option<ExpertShape>, EngineError> {
        let _ = (layer, activations);
        Err(EngineError::mismatch("source of streamed experts", "a store", "another"))
    }

    /// The float tensors of a layer, or of the model as a whole; row-major.
    ///
    /// # Errors
    /// As [`ExpertSource::matrices`].
    fn floats(&self, layer: Option<u32>) -> Result<Vec<(FloatKind, Vec<f32>)>, EngineError>;
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
