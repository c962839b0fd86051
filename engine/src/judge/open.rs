//! The three models that the judge compares, from a store and the checkpoint that it was made of.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use nestling_formats::checkpoint::Checkpoint;
use nestling_formats::store::{GroupId, Index, Store};
use nestling_formats::{FloatKind, Level, ModelConfig, Plane};

use super::{JudgeLevel, JudgeModels};
use crate::backend::Backend;
use crate::cancel::CancelToken;
use crate::error::EngineError;
use crate::expert::{CheckpointSource, ExpertSource, FloatTables, Matrices, StoreSource};
use crate::kv_cache::{KvDtype, pages_for};
use crate::model::{Runner, RunnerOptions};
use crate::runner::ModelRunner;
use crate::weights::ActivationMode;

/// What to open for judging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JudgeOpenOptions {
    /// Positions that a sequence may have.
    pub sequence_length: usize,
    /// The highest level that will be judged; none for the store's own.
    pub level_max: Option<Level>,
    /// How the store's keys and values are held when it runs; those of the other two are f32.
    pub kv_dtype: KvDtype,
}

/// Three models, opened: the checkpoint, the store with float activations, the store as it runs.
/// The two of the store share its weights.
pub struct JudgeSet {
    store: Arc<Store>,
    reference: Box<dyn ModelRunner>,
    weights_only: Box<dyn ModelRunner>,
    shipped: Box<dyn ModelRunner>,
}

impl JudgeSet {
    /// Opens them, each on a `backend` of its own. `progress` hears of parts done and parts in all.
    ///
    /// # Errors
    /// [`EngineError::Mismatch`] if the store is of another model than the checkpoint;
    /// [`EngineError::LevelMissing`]; [`EngineError::Cancelled`]; weights that cannot be had.
    pub fn open<B: Backend + 'static>(
        mut backend: impl FnMut() -> B,
        store: Arc<Store>,
        checkpoint: Checkpoint,
        options: &JudgeOpenOptions,
        cancel: &CancelToken,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, EngineError> {
        let nested = StoreSource::owned(Arc::clone(&store), options.level_max)?;
        let nested = Arc::new(Shared::new(nested));
        let floats = Arc::new(Shared::new(CheckpointSource::new(checkpoint)));
        let of_store = || Arc::clone(&nested) as Arc<dyn ExpertSource>;
        let of_checkpoint = || Arc::clone(&floats) as Arc<dyn ExpertSource>;
        let mixed = Arc::new(FloatTables::new(of_store(), of_checkpoint())?);

        let mut loaded = 0;
        let mut load = |source: Arc<dyn ExpertSource>, activations, kv_dtype| {
            let options = RunnerOptions {
                kv_pages: Some(pages_for(options.sequence_length)),
                kv_dtype,
                activations,
                context_max: Some(
                    options.sequence_length.min(source.config().max_position_embeddings),
                ),
                ..RunnerOptions::default()
            };
            let mut report = |done, total| progress(loaded * total + done, 3 * total);
            let runner = Runner::load(backend(), source, &options, cancel, &mut report)?;
            loaded += 1;
            Ok::<Box<dyn ModelRunner>, EngineError>(Box::new(runner))
        };
        let reference = load(of_checkpoint(), ActivationMode::Float, KvDtype::F32)?;
        let weights_only = load(mixed, ActivationMode::Float, KvDtype::F32)?;
        let shipped = load(of_store(), ActivationMode::Int8, options.kv_dtype)?;
        floats.forget();
        nested.forget();
        Ok(Self { store, reference, weights_only, shipped })
    }

    /// The models, for [`super::judge`].
    pub fn models(&mut self) -> JudgeModels<'_> {
        JudgeModels {
            reference: &mut *self.reference,
            weights_only: &mut *self.weights_only,
            shipped: &mut *self.shipped,
        }
    }

    /// Levels with their bits per weight.
    ///
    /// # Errors
    /// [`EngineError::LevelMissing`] for a level that is not loaded.
    pub fn levels(&self, levels: &[Level]) -> Result<Vec<JudgeLevel>, EngineError> {
        let held = self.shipped.limits().level_max.unwrap_or(self.store.level());
        let level = |&level: &Level| {
            if level > held {
                return Err(EngineError::LevelMissing { asked: level.bits(), held: held.bits() });
            }
            let bits_per_weight = bits_per_weight(self.store.index(), level);
            Ok(JudgeLevel { level, bits_per_weight })
        };
        levels.iter().map(level).collect()
    }
}

/// Bits per weight over the matrices of attention and feed-forward parts: what a store's extents
/// take of them in the model of a level, with scales, tables and padding.
pub fn bits_per_weight(index: &Index, level: Level) -> f64 {
    let (mut bytes, mut weights) = (0u64, 0u64);
    for group in index.groups() {
        if !matches!(group.id, GroupId::Dense { .. } | GroupId::Expert(_)) {
            continue;
        }
        weights += group.matrices.iter().map(|m| m.rows as u64 * m.cols as u64).sum::<u64>();
        let planes = index.planes_at(group, level).unwrap_or(Plane::ALL.len());
        for plane in Plane::ALL.into_iter().take(planes) {
            if let Some(extent) = index.extent(group, plane) {
                bytes += extent.length.next_multiple_of(index.alignment().max(1));
            }
        }
    }
    bytes += index.codecs().iter().map(|codec| codec.bytes as u64).sum::<u64>();
    bytes as f64 * 8.0 / weights as f64
}

/// A source that reads every group once, for several models; clones share the bytes.
struct Shared<S> {
    source: S,
    read: Mutex<HashMap<GroupId, Matrices>>,
}

impl<S: ExpertSource> Shared<S> {
    fn new(source: S) -> Self {
        Self { source, read: Mutex::default() }
    }

    /// Drops what no model uses.
    fn forget(&self) {
        self.read.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl<S: ExpertSource> ExpertSource for Shared<S> {
    fn config(&self) -> &ModelConfig {
        self.source.config()
    }

    fn level_max(&self) -> Option<Level> {
        self.source.level_max()
    }

    fn matrices(&self, group: &GroupId) -> Result<Matrices, EngineError> {
        let known = || self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(matrices) = known().get(group) {
            return Ok(matrices.clone());
        }
        // Read without the lock: several threads read different groups.
        let matrices = self.source.matrices(group)?;
        known().insert(group.clone(), matrices.clone());
        Ok(matrices)
    }

    fn floats(&self, layer: Option<u32>) -> Result<Vec<(FloatKind, Vec<f32>)>, EngineError> {
        self.source.floats(layer)
    }
}
