//! Opening of models: from a path or an opened source to a runner on a device.

use std::path::Path;
use std::sync::Arc;

#[cfg(not(target_family = "wasm"))]
use nestling_formats::store::MappedStore;
use nestling_formats::store::Store;
use nestling_formats::{Level, Plane};
use nestling_import::checkpoint::Checkpoint;
use nestling_import::{ContextLimit, GenerationDefaults, ModelConfig, RopeScaling};
use xxhash_rust::xxh3::Xxh3;

use crate::engine::Engine;
use crate::identity::ModelIdentity;
use crate::memory_plan::{MemoryPlan, PlannedResidence};
use crate::model::{Runner, RunnerOptions};
use crate::model_core::ModelParts;
use crate::open::Model;
use crate::options::{ModelOptions, Residence};
use crate::sample_tokens::sample_tokens;
use nestling_core::backend::Backend;
use nestling_core::budget::{Budget, BudgetExceeded, Purpose, Reservation};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::group::{ExpertDivision, RankShare};
use nestling_core::runner::ModelRunner;
use nestling_cpu::Cpu;
use nestling_experts::config_of;
use nestling_experts::expert::{
    CheckpointSource, ExpertSource, HostOptions, Prefetch, StoreSource, StreamOptions,
};
use nestling_levels::allocation::{self, Allocation, ChooseOptions, Counting};
use nestling_levels::dual::DualRouting;
use nestling_text::SamplingParams;
use nestling_text::{ChatTemplate, Tokenizer};

/// Source of a model's weights. Both forms of a store produce the same output.
#[non_exhaustive]
pub enum ModelSource {
    /// A store with weights that are read into memory and verified.
    Store(Arc<Store>),
    /// A memory-mapped store with weights used directly from the mapping. Experts are verified before their
    /// first use.
    ///
    /// It opens faster. The operating system manages its memory, so it does not count towards the budget.
    #[cfg(not(target_family = "wasm"))]
    Mapped(MappedStore),
    /// A Hugging Face checkpoint, run unquantized.
    Checkpoint(Box<Checkpoint>),
}

impl std::fmt::Debug for ModelSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Store(store) => write!(f, "ModelSource::Store({})", store.name()),
            #[cfg(not(target_family = "wasm"))]
            Self::Mapped(mapped) => write!(f, "ModelSource::Mapped({})", mapped.store().name()),
            Self::Checkpoint(checkpoint) => {
                write!(f, "ModelSource::Checkpoint({})", checkpoint.directory().display())
            }
        }
    }
}

impl ModelSource {
    /// Opens the source at a path: a store file or a checkpoint's directory.
    ///
    /// # Errors
    /// Fails with [`EngineError::Unreadable`] if the path cannot be read and with [`EngineError::NotAModel`] if it is neither,
    /// and returns an error if the source is damaged.
    pub fn at(path: impl AsRef<Path>) -> Result<Self, EngineError> {
        let path = path.as_ref();
        let not_a_model = |reason: &str| {
            let (path, reason) = (path.display().to_string(), reason.to_owned());
            EngineError::NotAModel { path, reason }
        };
        if let Err(source) = path.metadata() {
            return Err(EngineError::Unreadable { path: path.display().to_string(), source });
        }
        if !path.is_dir() {
            return Ok(Self::Store(Arc::new(Store::open(path)?)));
        }
        if !path.join("config.json").is_file() {
            let reason = "the folder has no config.json, so it is no Hugging Face checkpoint; give \
                          a .nest file or a checkpoint's folder";
            return Err(not_a_model(reason));
        }
        Ok(Self::Checkpoint(Box::new(Checkpoint::open(path)?)))
    }

    /// Returns another handle of the same weights. A checkpoint is opened again.
    ///
    /// # Errors
    /// Returns an error if the checkpoint cannot be opened any more.
    pub fn another(&self) -> Result<Self, EngineError> {
        Ok(match self {
            Self::Store(store) => Self::Store(Arc::clone(store)),
            #[cfg(not(target_family = "wasm"))]
            Self::Mapped(mapped) => Self::Mapped(mapped.clone()),
            Self::Checkpoint(checkpoint) => {
                Self::Checkpoint(Box::new(Checkpoint::open(checkpoint.directory())?))
            }
        })
    }

    fn store(&self) -> Option<&Arc<Store>> {
        match self {
            Self::Store(store) => Some(store),
            #[cfg(not(target_family = "wasm"))]
            Self::Mapped(mapped) => Some(mapped.store()),
            Self::Checkpoint(_) => None,
        }
    }

    /// Returns the configuration of the model.
    ///
    /// # Errors
    /// Returns an error if the store's configuration cannot be read.
    pub fn config(&self) -> Result<ModelConfig, EngineError> {
        match self {
            Self::Checkpoint(checkpoint) => Ok(checkpoint.config().clone()),
            Self::Store(store) => config_of(store),
            #[cfg(not(target_family = "wasm"))]
            Self::Mapped(mapped) => config_of(mapped.store()),
        }
    }

    fn asset(&self, name: &str) -> Result<Option<Vec<u8>>, EngineError> {
        match self {
            Self::Checkpoint(checkpoint) => Ok(checkpoint.asset(name)?),
            _ => self.store().map_or(Ok(None), |store| Ok(store.asset(name)?)),
        }
    }

    /// Chooses the levels of single matrices for the weight budget, if one is set.
    fn allocate(&self, options: &ModelOptions) -> Result<Option<Arc<Allocation>>, EngineError> {
        let (Some(store), Some(budget)) = (self.store(), options.weight_budget) else {
            return Ok(None);
        };
        let top = options.level.unwrap_or(store.level()).min(store.level());
        let options = ChooseOptions { top, budget, counting: Counting::Memory, dense: None };
        Ok(Some(Arc::new(allocation::choose(store.index(), &options)?)))
    }

    /// Plans the memory within the unreserved budget.
    fn memory_plan(
        &self,
        resources: &Resources<'_>,
        options: &ModelOptions,
        config: &ModelConfig,
        allocation: Option<&Allocation>,
        share: RankShare,
    ) -> Result<MemoryPlan, EngineError> {
        match self {
            Self::Checkpoint(checkpoint) => {
                Ok(MemoryPlan::resident(config, options, checkpoint.weight_bytes(), share))
            }
            Self::Store(store) => {
                let plan = |available| {
                    MemoryPlan::of_rank(store, config, options, allocation, available, share)
                };
                let budget = resources.budget;
                let available = || {
                    let engine = budget.total_bytes().map(|_| budget.available_bytes());
                    engine.into_iter().chain(options.memory_limit).min()
                };
                let first = plan(available());
                if matches!(&first, Ok(plan) if plan.residence != PlannedResidence::Streamed) {
                    return first;
                }
                // Models being closed release their memory first.
                resources.settle();
                plan(available())
            }
            #[cfg(not(target_family = "wasm"))]
            Self::Mapped(mapped)
                if share.is_divided() && options.expert_division == ExpertDivision::Sliced =>
            {
                // A rank copies its slices.
                let options = ModelOptions { residence: Residence::Owned, ..options.clone() };
                MemoryPlan::of_rank(mapped.store(), config, &options, allocation, None, share)
            }
            #[cfg(not(target_family = "wasm"))]
            Self::Mapped(_) => Ok(MemoryPlan::resident(config, options, 0, share)),
        }
    }

    fn experts(
        self,
        config: &ModelConfig,
        level: Option<Level>,
        allocation: Option<Arc<Allocation>>,
    ) -> Result<(Arc<dyn ExpertSource>, ModelIdentity), EngineError> {
        let source = match (&self, self.store()) {
            (_, Some(store)) => u128::from_le_bytes(store.id().0),
            (Self::Checkpoint(checkpoint), _) => checkpoint_identity(checkpoint),
            _ => 0,
        };
        let identity = ModelIdentity { source, ..ModelIdentity::default() };
        let source = match self {
            Self::Store(store) => StoreSource::owned_as(store, config.clone(), level)?,
            #[cfg(not(target_family = "wasm"))]
            Self::Mapped(mapped) => StoreSource::mapped_as(mapped, config.clone(), level)?,
            Self::Checkpoint(checkpoint) => {
                return Ok((Arc::new(CheckpointSource::new(*checkpoint)), identity));
            }
        };
        Ok(match allocation {
            None => (Arc::new(source), identity),
            Some(allocation) => {
                let identity = ModelIdentity { allocation: allocation.hash().0, ..identity };
                (Arc::new(source.allocated(allocation)?), identity)
            }
        })
    }
}

/// Hashes the directory and the size of the weights. Cheap, since file contents are not read.
fn checkpoint_identity(checkpoint: &Checkpoint) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(checkpoint.directory().as_os_str().as_encoded_bytes());
    hash.update(&checkpoint.weight_bytes().to_le_bytes());
    hash.digest128()
}

/// Progress of opening a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenProgress {
    /// Number of parts loaded: layers, and parts outside the layers.
    pub parts_done: usize,
    /// Total number of parts.
    pub parts_total: usize,
}

impl Model {
    /// Opens a store or a checkpoint's directory on the CPU.
    ///
    /// `progress` is called after each layer. `cancel` takes effect between two layers.
    ///
    /// ```no_run
    /// # use nestling_runtime::{Engine, Model, ModelOptions, OpenProgress};
    /// # let (engine, cancel) = (Engine::new(Default::default())?, nestling_core::CancelToken::new());
    /// let options = ModelOptions { context_length: Some(2048), ..ModelOptions::default() };
    /// let mut progress = |done: OpenProgress| println!("{} parts", done.parts_done);
    /// let model = Model::open(&engine, "qwen3.nest", &options, &mut progress, &cancel)?;
    /// assert_eq!(model.context_length(), 2048);
    /// # Ok::<(), nestling_core::EngineError>(())
    /// ```
    ///
    /// # Errors
    /// Fails with [`EngineError::NotAModel`], with [`EngineError::Limit`] if [`ModelOptions::context_length`]
    /// exceeds the trained one, with [`EngineError::Budget`] before loading if the memory budget is exceeded,
    /// or with [`EngineError::Cancelled`]. Returns an error if the source is damaged or
    /// not supported.
    pub fn open(
        engine: &Engine,
        path: impl AsRef<Path>,
        options: &ModelOptions,
        progress: &mut dyn FnMut(OpenProgress),
        cancel: &CancelToken,
    ) -> Result<Self, EngineError> {
        Self::open_source(engine, ModelSource::at(path)?, options, progress, cancel)
    }

    /// Opens a model on the CPU from an opened source.
    ///
    /// # Errors
    /// Fails as [`Model::open`] does.
    pub fn open_source(
        engine: &Engine,
        source: ModelSource,
        options: &ModelOptions,
        progress: &mut dyn FnMut(OpenProgress),
        cancel: &CancelToken,
    ) -> Result<Self, EngineError> {
        let cpu = Cpu::with(Arc::clone(&engine.core.pool), engine.core.kernels);
        Self::open_source_on(cpu, engine, source, options, progress, cancel)
    }

    /// Opens a model on any backend from an opened source.
    ///
    /// # Errors
    /// Fails as [`Model::open`] does, or with an error of the backend.
    pub fn open_source_on<B: Backend>(
        backend: B,
        engine: &Engine,
        source: ModelSource,
        options: &ModelOptions,
        progress: &mut dyn FnMut(OpenProgress),
        cancel: &CancelToken,
    ) -> Result<Self, EngineError> {
        let parts = ModelParts::open(backend, engine, source, options, progress, cancel)?;
        Self::from_parts(engine, parts)
    }
}

/// Memory budget and threads of models that are opened without an engine.
#[derive(Clone, Debug)]
pub struct OpenWithin {
    /// Memory budget. Opening does not wait for other models to release theirs.
    pub budget: Budget,
    /// Number of threads that compute experts in host memory.
    pub threads: usize,
}

/// Resources of an opening.
struct Resources<'a> {
    budget: &'a Budget,
    threads: usize,
    /// Engine whose closing models release their memory first.
    engine: Option<&'a Engine>,
}

impl Resources<'_> {
    /// Waits until the models being closed have released their memory.
    fn settle(&self) {
        if let Some(engine) = self.engine {
            engine.core.settle();
        }
    }

    /// Reserves bytes of the budget, waiting first for closing models to release theirs if necessary.
    fn reserve(&self, purpose: Purpose, bytes: u64) -> Result<Reservation, BudgetExceeded> {
        self.budget.reserve(purpose, bytes).or_else(|_| {
            self.settle();
            self.budget.reserve(purpose, bytes)
        })
    }
}

impl ModelParts {
    /// Opens the components of a model, or of a rank's share of it if the backend belongs to a group.
    ///
    /// # Errors
    /// Fails as [`Model::open`] does, or with an error of the backend.
    pub fn open<B: Backend>(
        backend: B,
        engine: &Engine,
        source: ModelSource,
        options: &ModelOptions,
        progress: &mut dyn FnMut(OpenProgress),
        cancel: &CancelToken,
    ) -> Result<Self, EngineError> {
        let (budget, threads) = (engine.budget(), engine.core.pool.threads());
        let resources = Resources { budget, threads, engine: Some(engine) };
        Self::open_with(backend, &resources, source, options, progress, cancel)
    }

    /// Opens the components as [`ModelParts::open`] does, without an engine: also on behalf of a running step.
    ///
    /// # Errors
    /// Fails as [`ModelParts::open`] does.
    pub fn open_within<B: Backend>(
        backend: B,
        within: &OpenWithin,
        source: ModelSource,
        options: &ModelOptions,
        progress: &mut dyn FnMut(OpenProgress),
        cancel: &CancelToken,
    ) -> Result<Self, EngineError> {
        let resources = Resources { budget: &within.budget, threads: within.threads, engine: None };
        Self::open_with(backend, &resources, source, options, progress, cancel)
    }

    fn open_with<B: Backend>(
        backend: B,
        resources: &Resources<'_>,
        source: ModelSource,
        options: &ModelOptions,
        progress: &mut dyn FnMut(OpenProgress),
        cancel: &CancelToken,
    ) -> Result<Self, EngineError> {
        let allocation = source.allocate(options)?;
        let share = backend.share();
        if let (Some(store), None, true) =
            (source.store(), &allocation, share == RankShare::default())
        {
            announce_dense(store, options.level);
        }
        let text = ModelText::read(&source)?;
        let config = source.config()?;
        check_context_length(options, &config)?;
        let plan = source.memory_plan(resources, options, &config, allocation.as_deref(), share)?;
        if let Some(store) = source.store() {
            // With little memory, a second copy in the page cache would displace useful data.
            let is_short = plan.residence == PlannedResidence::Streamed;
            store.storage().pass_page_cache(is_short && options.reads.direct);
        }
        let (source, identity) = source.experts(&config, options.level, allocation.clone())?;
        let reserve = |purpose, bytes| resources.reserve(purpose, bytes);
        let reservations = vec![
            reserve(Purpose::Weights, plan.weight_bytes)?,
            reserve(Purpose::KeyValue, plan.kv_bytes)?,
            reserve(Purpose::Scratch, plan.scratch_bytes)?,
            reserve(Purpose::Program, plan.program_bytes)?,
        ];
        let experts = match plan.residence {
            PlannedResidence::Resident => None,
            PlannedResidence::Streamed | PlannedResidence::Lazy => {
                Some(reserve(Purpose::Experts, plan.expert_bytes)?)
            }
        };
        let sample = sample_tokens(text.tokenizer.as_ref(), config.vocab_size)?;
        let device = backend.name();
        let host = HostOptions { experts: options.host_experts, threads: resources.threads };
        let opened = open_runner(backend, source, options, &plan, host, progress, cancel)?;
        let (runner, dual) = with_dual(opened, options, &sample, cancel)?;
        let eos = &text.defaults.eos_token_ids;
        let end_tokens = if eos.is_empty() { config.eos_token_ids.clone() } else { eos.clone() };
        Ok(Self {
            identity: identity_of(identity, options, runner.as_ref(), B::PAGE_KIND),
            device,
            runner,
            sampling: sampling_of(&text.defaults),
            tokenizer: text.tokenizer,
            chat_template: text.chat_template,
            end_tokens,
            context_length: plan.context_length,
            weight_bytes: plan.weight_bytes.saturating_add(plan.expert_bytes),
            allocation,
            dual,
            prefixes: options.prefixes,
            page_store: options.page_store.clone(),
            reservations,
            experts,
            plan: Some(plan),
        })
    }
}

/// Announces the reads of everything but experts, so that a storage with slow requests can join them.
fn announce_dense(store: &Store, level: Option<Level>) {
    // Default: without a requested level, the highest one is loaded.
    let level = level.unwrap_or(store.level()).min(store.level());
    let groups = store.groups().iter().filter(|group| group.id.expert().is_none());
    for group in groups {
        // Default: a level without a section in the store uses no planes.
        let planes = store.index().planes_at(group, level).unwrap_or(0);
        for extent in Plane::ALL.iter().take(planes).filter_map(|plane| store.extent(group, *plane))
        {
            store.storage().announce(extent.offset, extent.length, true);
        }
    }
}

fn open_runner<B: Backend>(
    backend: B,
    source: Arc<dyn ExpertSource>,
    options: &ModelOptions,
    plan: &MemoryPlan,
    host: HostOptions,
    progress: &mut dyn FnMut(OpenProgress),
    cancel: &CancelToken,
) -> Result<Runner<B>, EngineError> {
    let streaming = |prefetch| StreamOptions {
        budget_bytes: plan.expert_bytes,
        reads: options.reads.clone(),
        prefetch,
        host,
    };
    let runner_options = RunnerOptions {
        rows_max: plan.rows_max,
        kv_pages: Some(plan.kv_pages),
        states: Some(plan.states),
        kv_dtype: options.kv_dtype,
        activations: options.activation_mode,
        context_max: Some(plan.context_length),
        expert_division: options.expert_division,
        kv_division: options.kv_division,
        expert_replicas: options.expert_replicas,
        recorder: options.recorder.clone(),
        streaming: match plan.residence {
            PlannedResidence::Resident => None,
            PlannedResidence::Streamed => Some(streaming(options.prefetch)),
            PlannedResidence::Lazy => Some(streaming(Prefetch::All)),
        },
        ..RunnerOptions::default()
    };
    let mut report = |parts_done, parts_total| progress(OpenProgress { parts_done, parts_total });
    Runner::load(backend, source, &runner_options, cancel, &mut report)
}

/// Returns the runner with its dual routing, if requested and the weights have levels.
fn with_dual<B: Backend>(
    mut runner: Runner<B>,
    options: &ModelOptions,
    sample: &[u32],
    cancel: &CancelToken,
) -> Result<(Box<dyn ModelRunner>, Option<DualRouting>), EngineError> {
    if let Some(router) = &options.level_router {
        runner.set_level_router(Arc::clone(router));
    }
    let Some((asked, highest)) = options.dual.zip(runner.limits().level_max) else {
        return Ok((Box::new(runner), None));
    };
    let router = runner.level_router();
    let dual = DualRouting::open(&mut runner, &*router, asked, highest, sample, cancel)?;
    Ok((Box::new(runner), Some(dual)))
}

/// Refuses a context longer than the trained one, which the model's positions do not cover, or longer than
/// those in which sparse attention selects all positions.
///
/// # Errors
/// Fails with [`EngineError::Limit`].
fn check_context_length(options: &ModelOptions, config: &ModelConfig) -> Result<(), EngineError> {
    let limit = config.max_position_embeddings;
    let what = match config.context_limit {
        ContextLimit::Trained => "context_length",
        ContextLimit::Selection { .. } => {
            "context_length of a model whose sparse attention is supported only where it selects all positions"
        }
    };
    match options.context_length {
        Some(length) if length > limit => {
            Err(EngineError::Limit { what, limit: limit as u64, found: length as u64 })
        }
        _ => Ok(()),
    }
}

struct ModelText {
    tokenizer: Option<Tokenizer>,
    chat_template: Option<ChatTemplate>,
    defaults: GenerationDefaults,
}

impl ModelText {
    fn read(source: &ModelSource) -> Result<Self, EngineError> {
        let tokenizer = match source.asset("tokenizer.json")? {
            Some(bytes) => {
                Some(Tokenizer::from_bytes("tokenizer.json", &bytes).map_err(EngineError::text)?)
            }
            None => None,
        };
        let config = source.asset("tokenizer_config.json")?;
        let template = source.asset("chat_template.jinja")?;
        let chat_template = ChatTemplate::from_files(config.as_deref(), template.as_deref())
            .map_err(EngineError::text)?;
        let file = "generation_config.json";
        let defaults = match source.asset(file)? {
            Some(bytes) => GenerationDefaults::from_json(file, &bytes)?,
            None => GenerationDefaults::default(),
        };
        Ok(Self { tokenizer, chat_template, defaults })
    }
}

fn sampling_of(defaults: &GenerationDefaults) -> SamplingParams {
    let plain = SamplingParams::default();
    if defaults.do_sample == Some(false) {
        return SamplingParams::greedy();
    }
    SamplingParams {
        temperature: defaults.temperature.unwrap_or(plain.temperature),
        top_k: defaults.top_k.map_or(plain.top_k, |top_k| top_k as usize),
        top_p: defaults.top_p.filter(|top_p| *top_p > 0.0).unwrap_or(plain.top_p),
        min_p: defaults.min_p.unwrap_or(plain.min_p),
        repetition_penalty: defaults.repetition_penalty.unwrap_or(plain.repetition_penalty),
        ..plain
    }
}

/// Returns whether the context is so long that long-context RoPE angles apply.
fn has_long_angles(runner: &dyn ModelRunner) -> bool {
    let context = runner.limits().context_max;
    let ropes = runner.config().layers.iter().filter_map(|layer| layer.mixer.rope());
    ropes.into_iter().any(|rope| match &rope.scaling {
        RopeScaling::LongRope(long) => context > long.original_max_position_embeddings,
        _ => false,
    })
}

/// Returns the model identity, completed by everything else that pages depend on.
fn identity_of(
    weights: ModelIdentity,
    options: &ModelOptions,
    runner: &dyn ModelRunner,
    page_kind: u8,
) -> ModelIdentity {
    ModelIdentity {
        // Default: 0 means no router.
        level_router: options.level_router.as_ref().map_or(0, |router| router.identity()),
        // Default: 0 means weights without levels.
        level: runner.limits().level_max.map_or(0, |level| level.bits()),
        activation_mode: options.activation_mode,
        kv_dtype: options.kv_dtype,
        page_kind,
        long_angles: has_long_angles(runner),
        ..weights
    }
}
