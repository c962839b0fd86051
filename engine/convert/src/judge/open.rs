//! Opens the models that an evaluation compares, from a store and its source checkpoint.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use nestling_formats::store::{GroupId, Store};
use nestling_formats::{FloatKind, Level};
use nestling_import::ModelConfig;
use nestling_import::checkpoint::Checkpoint;

use super::{JudgeModels, JudgePoint, PointModels};
use nestling_core::backend::Backend;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::{KvDtype, pages_for};
use nestling_core::runner::ModelRunner;
use nestling_core::sync::whole;
use nestling_core::weights::ActivationMode;
use nestling_experts::expert::{
    CheckpointSource, ExpertSource, FloatTables, Matrices, StoreSource, StreamOptions,
};
use nestling_levels::allocation::{Allocation, Counting, bits_per_weight, layer_bytes};
use nestling_levels::dual::{DualPolicy, ExpertSensitivities, LevelMode, RouteSample, Threshold};
use nestling_runtime::model::{Runner, RunnerOptions};

/// Paths to evaluate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JudgePaths {
    /// The weights alone, and the store as it is run.
    #[default]
    Both,
    /// The weights alone.
    WeightsOnly,
}

/// Options for opening the models.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgeOpenOptions {
    /// Maximum number of positions of a sequence.
    pub sequence_length: usize,
    /// Format of the KV cache for the store as it is run; the other models use f32.
    pub kv_dtype: KvDtype,
    /// Paths to evaluate.
    pub paths: JudgePaths,
    /// Streaming of experts for the store as it is run; `None` keeps all in memory. It does not change
    /// results in strict mode.
    pub streaming: Option<StreamOptions>,
    /// Level mode of the store as it is run. In elastic mode, timing may change its results if levels are
    /// mixed. Tokens are then computed one by one, as in generation.
    pub mode: LevelMode,
    /// Tokens on which thresholds of dual routing are calibrated.
    pub sample: Vec<u32>,
    /// Levels and allocations to evaluate, in the order of the result rows.
    pub points: Vec<JudgePoint>,
}

struct OpenPoint {
    point: JudgePoint,
    weights_only: Box<dyn ModelRunner>,
    shipped: Option<Box<dyn ModelRunner>>,
    dual: Option<DualPolicy>,
}

/// Opened models of an evaluation. All points share the store's weights.
pub struct JudgeSet {
    reference: Box<dyn ModelRunner>,
    points: Vec<OpenPoint>,
    mode: LevelMode,
}

struct RowLimits {
    rows_max: usize,
    streaming: Option<StreamOptions>,
}

impl Default for RowLimits {
    fn default() -> Self {
        Self { rows_max: RunnerOptions::default().rows_max, streaming: None }
    }
}

impl RowLimits {
    /// Returns the settings for the store as it is run.
    fn shipped(options: &JudgeOpenOptions) -> Self {
        let rows_max = match options.mode {
            LevelMode::Strict => RunnerOptions::default().rows_max,
            LevelMode::Elastic => 1,
        };
        Self { rows_max, streaming: options.streaming.clone() }
    }
}

impl JudgeSet {
    /// Opens the models, each on a separate `backend`. `progress` receives the number of completed parts and
    /// their total.
    ///
    /// # Errors
    /// Fails with [`EngineError::Mismatch`] if the store belongs to another model than the checkpoint, or
    /// with [`EngineError::Cancelled`]. Fails if weights are unavailable or if the device rejects the model.
    pub fn open<B: Backend + 'static>(
        mut backend: impl FnMut() -> Result<B, EngineError>,
        store: Arc<Store>,
        checkpoint: Checkpoint,
        options: &JudgeOpenOptions,
        cancel: &CancelToken,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, EngineError> {
        let nested = Arc::new(SharedSource::new(StoreSource::owned(Arc::clone(&store), None)?));
        let floats = Arc::new(SharedSource::new(CheckpointSource::new(checkpoint)));
        let of_checkpoint = || Arc::clone(&floats) as Arc<dyn ExpertSource>;
        let per_point = match options.paths {
            JudgePaths::Both => 2,
            JudgePaths::WeightsOnly => 1,
        };
        let models = 1 + per_point * options.points.len();

        let mut loaded = 0;
        let mut load = |ready: RunnerParts| {
            let mut report = |done, total| progress(loaded * total + done, models * total);
            let runner = ready.load(backend()?, cancel, &mut report)?;
            loaded += 1;
            Ok::<_, EngineError>(Box::new(runner))
        };
        let reference = load(RunnerParts::float(of_checkpoint(), options))?;
        let mut points = Vec::with_capacity(options.points.len());
        for point in &options.points {
            point.allocation.check(store.id())?;
            let mixed = FloatTables::new(allocated(&nested, point), of_checkpoint())?;
            let mut weights_only = load(RunnerParts::float(Arc::new(mixed), options))?;
            let mut shipped = match options.paths {
                JudgePaths::Both => {
                    Some(load(RunnerParts::shipped(&store, &nested, point, options)?)?)
                }
                JudgePaths::WeightsOnly => None,
            };
            let calibrated = shipped.as_mut().unwrap_or(&mut weights_only);
            let dual = point.calibrate(calibrated, &options.sample, cancel)?;
            let shipped = shipped.map(|shipped| shipped as Box<dyn ModelRunner>);
            points.push(OpenPoint { point: point.clone(), weights_only, shipped, dual });
        }
        floats.forget();
        nested.forget();
        Ok(Self { reference, points, mode: options.mode })
    }

    /// Returns the models for [`super::judge`].
    pub fn models(&mut self) -> JudgeModels<'_> {
        let mode = self.mode;
        let points = self.points.iter_mut().map(|open| {
            let shipped = open.shipped.as_mut();
            let models = PointModels {
                weights_only: &mut *open.weights_only,
                shipped: shipped.map(|shipped| &mut **shipped as &mut dyn ModelRunner),
                dual: open.dual,
                mode,
            };
            (open.point.clone(), models)
        });
        JudgeModels { reference: &mut *self.reference, points: points.collect() }
    }
}

pub(super) struct RunnerParts {
    source: Arc<dyn ExpertSource>,
    options: RunnerOptions,
}

impl RunnerParts {
    /// Creates a model with float activations.
    fn float(source: Arc<dyn ExpertSource>, options: &JudgeOpenOptions) -> Self {
        Self::new(source, options, ActivationMode::Float, KvDtype::F32, RowLimits::default())
    }

    /// Creates the model of the store as it is run at a point.
    pub fn shipped(
        store: &Arc<Store>,
        nested: &Arc<SharedSource<StoreSource>>,
        point: &JudgePoint,
        options: &JudgeOpenOptions,
    ) -> Result<Self, EngineError> {
        let held = RowLimits::shipped(options);
        let source: Arc<dyn ExpertSource> = match held.streaming {
            // Single planes can only be read from a store directly.
            Some(_) => {
                let source = StoreSource::owned(Arc::clone(store), None)?;
                Arc::new(source.allocated(Arc::new(point.allocation.clone()))?)
            }
            None => allocated(nested, point),
        };
        Ok(Self::new(source, options, ActivationMode::Int8, options.kv_dtype, held))
    }

    fn new(
        source: Arc<dyn ExpertSource>,
        options: &JudgeOpenOptions,
        activations: ActivationMode,
        kv_dtype: KvDtype,
        held: RowLimits,
    ) -> Self {
        let context = options.sequence_length.min(source.config().max_position_embeddings);
        let options = RunnerOptions {
            kv_pages: Some(pages_for(options.sequence_length)),
            kv_dtype,
            activations,
            context_max: Some(context),
            rows_max: held.rows_max,
            streaming: held.streaming,
            ..RunnerOptions::default()
        };
        Self { source, options }
    }

    pub fn load<B: Backend>(
        self,
        backend: B,
        cancel: &CancelToken,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Runner<B>, EngineError> {
        Runner::load(backend, self.source, &self.options, cancel, progress)
    }
}

/// Returns a store's weights, limited to a point's allocation.
fn allocated(nested: &Arc<SharedSource<StoreSource>>, point: &JudgePoint) -> Arc<dyn ExpertSource> {
    let allocation = Arc::new(point.allocation.clone());
    Arc::new(Allocated { inner: Arc::clone(nested), allocation })
}

/// Creates a point for a level of a store. `dense` is a different level for the matrices that all tokens use.
///
/// # Errors
/// Fails with [`EngineError::LevelMissing`] if the store does not contain the level.
pub fn level_point(
    store: &Store,
    level: Level,
    dense: Option<Level>,
) -> Result<JudgePoint, EngineError> {
    let (index, held) = (store.index(), store.level());
    if let Some(asked) = [Some(level), dense].into_iter().flatten().find(|asked| *asked > held) {
        return Err(EngineError::LevelMissing { asked: asked.bits(), held: held.bits() });
    }
    let mut allocation = Allocation::of_level(index, level);
    if let Some(dense) = dense {
        allocation = allocation.with_dense_level(index, held, dense);
    }
    Ok(JudgePoint {
        level: Some(level),
        ..allocated_point(store, format!("level {level}"), allocation)
    })
}

/// Creates a point for dual routing at a mean level, with experts up to `level`. `dense` has the same meaning
/// as in [`level_point`].
///
/// # Errors
/// Fails like [`level_point`].
pub fn mean_level_point(
    store: &Store,
    mean_level: f32,
    level: Level,
    dense: Option<Level>,
) -> Result<JudgePoint, EngineError> {
    let point = level_point(store, level, dense)?;
    let name = format!("mean level {mean_level}");
    Ok(JudgePoint { name, level: None, dual: Some((mean_level, level)), ..point })
}

impl JudgePoint {
    /// Returns the policy whose threshold reaches the point's mean level on a text.
    pub(super) fn calibrate<B: Backend>(
        &self,
        runner: &mut Runner<B>,
        sample: &[u32],
        cancel: &CancelToken,
    ) -> Result<Option<DualPolicy>, EngineError> {
        // Default: no dual routing was requested.
        let Some((mean_level, level)) = self.dual else { return Ok(None) };
        let router = runner.level_router();
        let sample = RouteSample::record(&mut *runner, &*router, sample, cancel)?;
        let policy = DualPolicy::up_to(level, Threshold::ZERO);
        sample.calibrate(mean_level, policy).map(Some)
    }
}

/// Creates a point for an allocation of a store.
pub fn allocated_point(store: &Store, name: String, allocation: Allocation) -> JudgePoint {
    let bytes = layer_bytes(store.index(), &allocation, Counting::File);
    let bits_per_weight = bits_per_weight(store.index(), &allocation, Counting::File);
    JudgePoint { name, level: None, allocation, dual: None, bytes, bits_per_weight }
}

/// Weights limited to the levels of an allocation.
struct Allocated<S> {
    inner: Arc<S>,
    allocation: Arc<Allocation>,
}

impl<S: ExpertSource> ExpertSource for Allocated<S> {
    fn config(&self) -> &ModelConfig {
        self.inner.config()
    }

    fn level_max(&self) -> Option<Level> {
        self.inner.level_max()
    }

    fn is_tied(&self) -> bool {
        self.inner.is_tied()
    }

    fn matrices(&self, group: &GroupId) -> Result<Matrices, EngineError> {
        let matrices = self.inner.matrices(group)?;
        let list = matrices.list.into_iter().enumerate();
        let apply = |(place, (kind, matrix))| (kind, self.allocation.apply(group, place, matrix));
        Ok(Matrices { list: list.map(apply).collect(), ..matrices })
    }

    fn sensitivities(&self) -> ExpertSensitivities {
        self.inner.sensitivities()
    }

    fn store_source(self: Arc<Self>) -> Option<Arc<StoreSource>> {
        None
    }

    fn floats(&self, layer: Option<u32>) -> Result<Vec<(FloatKind, Vec<f32>)>, EngineError> {
        self.inner.floats(layer)
    }
}

/// A source that reads each group once for several models. Clones share the bytes.
pub(super) struct SharedSource<S> {
    source: S,
    read: Mutex<HashMap<GroupId, Matrices>>,
}

impl<S: ExpertSource> SharedSource<S> {
    pub fn new(source: S) -> Self {
        Self { source, read: Mutex::default() }
    }

    /// Releases the cached groups.
    pub fn forget(&self) {
        whole(self.read.lock()).clear();
    }
}

impl<S: ExpertSource> ExpertSource for SharedSource<S> {
    fn config(&self) -> &ModelConfig {
        self.source.config()
    }

    fn level_max(&self) -> Option<Level> {
        self.source.level_max()
    }

    fn is_tied(&self) -> bool {
        self.source.is_tied()
    }

    fn matrices(&self, group: &GroupId) -> Result<Matrices, EngineError> {
        let known = || whole(self.read.lock());
        if let Some(matrices) = known().get(group) {
            return Ok(matrices.clone());
        }
        // Read without the lock, because threads read different groups.
        let matrices = self.source.matrices(group)?;
        known().insert(group.clone(), matrices.clone());
        Ok(matrices)
    }

    fn sensitivities(&self) -> ExpertSensitivities {
        self.source.sensitivities()
    }

    fn store_source(self: Arc<Self>) -> Option<Arc<StoreSource>> {
        None
    }

    fn floats(&self, layer: Option<u32>) -> Result<Vec<(FloatKind, Vec<f32>)>, EngineError> {
        self.source.floats(layer)
    }
}
