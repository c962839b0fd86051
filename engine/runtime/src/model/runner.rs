//! A model on one device, with the sequence memory of its pools.

use std::sync::Arc;

use nestling_formats::memory::try_with_capacity;
use nestling_import::{ContextLimit, FeedForward, ModelConfig, TokenMixer};

use super::activations::Activations;
use super::divided::check_division;
use super::layer::Step;
use super::memory::{LayerMemory, MemoryShape};
use super::needs::model_needs;
use super::resume::forward;
use super::weights::{Loader, Progress, Weights};
use nestling_core::backend::{Backend, FeedForward as FeedForwardWeights};
use nestling_core::batch::{Batch, StepOutputKind, StepRows};
use nestling_core::cancel::CancelToken;
use nestling_core::divided_pages::DividedPages;
use nestling_core::driver::block_on;
use nestling_core::error::EngineError;
use nestling_core::group::ExpertDivision;
use nestling_core::kv_cache::{KvDtype, KvShape, PageId, pages_for};
use nestling_core::kv_heads::KvDivision;
use nestling_core::placement::MovableReplicas;
use nestling_core::recurrent::{STATES_PER_SEQUENCE, StateId, StateShape};
use nestling_core::replicas::{Replicas, check_streamed};
use nestling_core::routing_trace::TraceStep;
use nestling_core::runner::{
    ModelRunner, PromptSteps, RunnerLimits, SequenceFailure, StepFuture, StepOutput, StepStats,
};
use nestling_core::weights::ActivationMode;
use nestling_experts::expert::{
    EmbeddedRows, ExpertCache, ExpertMemory, ExpertSource, Prefetch, RequestScratch,
    RoutingRecorder, StreamOptions,
};
use nestling_experts::record::{Recorder, StepRecord};
use nestling_levels::dual::{LevelRouter, ThresholdRule};
use nestling_math::rope::{RopeAngles, rope_kinds};

/// Options of a runner.
#[derive(Clone, Debug, PartialEq)]
pub struct RunnerOptions {
    /// Maximum number of rows per step. It bounds the scratch memory.
    pub rows_max: usize,
    /// Number of KV pages. `None` means enough for one full context.
    pub kv_pages: Option<usize>,
    /// Number of recurrent states. `None` means enough for one session. Ignored by models without recurrent
    /// layers.
    pub states: Option<usize>,
    /// Element type of the KV cache.
    pub kv_dtype: KvDtype,
    /// Arithmetic used for nested matrices.
    pub activations: ActivationMode,
    /// Number of threads that read weights during loading.
    pub load_threads: usize,
    /// Maximum positions per sequence. `None` means the trained context length.
    pub context_max: Option<usize>,
    /// Streaming of experts. `None` loads all of them with the model.
    pub streaming: Option<StreamOptions>,
    /// Division of the experts if the backend is a rank of several.
    pub expert_division: ExpertDivision,
    /// Division of keys and values if the backend is a rank of several.
    pub kv_division: KvDivision,
    /// Maximum experts of each layer that every rank holds, if the backend is a rank of several.
    pub expert_replicas: usize,
    /// Recorder of events inside the model.
    pub recorder: Option<Arc<Recorder>>,
}

impl Default for RunnerOptions {
    fn default() -> Self {
        Self {
            rows_max: 512,
            kv_pages: None,
            states: None,
            kv_dtype: KvDtype::default(),
            activations: ActivationMode::default(),
            load_threads: std::thread::available_parallelism().map_or(1, usize::from),
            context_max: None,
            streaming: None,
            expert_division: ExpertDivision::default(),
            kv_division: KvDivision::default(),
            expert_replicas: 0,
            recorder: None,
        }
    }
}

/// Replicas that were loaded and are not in force yet: the set, and its experts with their layers and numbers.
type PreparedReplicas<B> = (Replicas, Vec<(u32, u32, FeedForwardWeights<B>)>);

/// A model on a device.
pub struct Runner<B: Backend> {
    pub(super) backend: B,
    pub(super) source: Arc<dyn ExpertSource>,
    weights: Weights<B>,
    pub(super) experts: ExpertCache<B>,
    pub(super) options: RunnerOptions,
    pub(super) prepared: Option<PreparedReplicas<B>>,
    activations: Activations<B>,
    memory: Vec<LayerMemory<B>>, // [layers]
    /// Bytes of this rank's part of a page, for each layer with pages.
    page_bytes: Vec<usize>,
    /// Layout of the pages if other ranks hold some of their heads.
    divided_pages: Option<DividedPages>,
    angles: Vec<RopeAngles>,
    limits: RunnerLimits,
    scratch: StepScratch<B>,
    /// Routing of the next step, if it is replayed.
    replayed: Option<TraceStep>,
}

/// Host memory reused by steps.
struct StepScratch<B: Backend> {
    rows: StepRows,
    logit_rows: Vec<u32>,
    angles: Vec<Vec<f32>>, // [kinds of angles][T, dims]
    requests: RequestScratch<B>,
    predictions: RequestScratch<B>,
    embedded: EmbeddedRows,
    /// A recycled output.
    output: StepOutput,
}

impl<B: Backend> Default for StepScratch<B> {
    fn default() -> Self {
        Self {
            rows: StepRows::default(),
            logit_rows: Vec::new(),
            angles: Vec::new(),
            requests: RequestScratch::default(),
            predictions: RequestScratch::default(),
            embedded: EmbeddedRows::default(),
            output: StepOutput::default(),
        }
    }
}

/// Returns how long the steps of a prompt should be.
fn prompt_steps(streaming: Option<&StreamOptions>) -> PromptSteps {
    match streaming {
        None => PromptSteps::Timed,
        // Experts stay in memory once read.
        Some(StreamOptions { prefetch: Prefetch::All, .. }) => PromptSteps::Timed,
        Some(_) => PromptSteps::Long,
    }
}

impl<B: Backend> Runner<B> {
    /// Loads a model. `cancel` is checked once per expert, and `progress` is called after each layer.
    ///
    /// # Errors
    /// Fails with [`EngineError::Cancelled`], or with [`EngineError::Limit`] if the model exceeds a limit of
    /// the device. Returns an error for weights that are missing, damaged or unreadable.
    pub fn load(
        mut backend: B,
        source: Arc<dyn ExpertSource>,
        options: &RunnerOptions,
        cancel: &CancelToken,
        progress: Progress<'_>,
    ) -> Result<Self, EngineError> {
        let config = source.config();
        let rows_max = options.rows_max.clamp(1, backend.limits().rows_max.max(1));
        check_limits(config, &backend)?;
        let (share, streaming) = (backend.share(), options.streaming.as_ref());
        check_division(options.expert_division, share, streaming, config)?;
        check_streamed(options.expert_replicas, share, streaming.is_some())?;
        let context_max = context_max(options, config);
        let pages = options.kv_pages.unwrap_or(pages_for(context_max));
        let state_bytes = StateShape::model_state_bytes(config);
        let states = match state_bytes {
            0 => 0,
            _ => options.states.unwrap_or(STATES_PER_SEQUENCE),
        };
        let limits = RunnerLimits {
            vocab_size: config.vocab_size,
            context_max,
            rows_max,
            pages,
            page_bytes: KvShape::model_page_bytes(config, options.kv_dtype),
            states,
            state_bytes,
            level_max: source.level_max(),
            prompt_steps: prompt_steps(streaming),
        };
        let (kv_dtype, kv_division) = (options.kv_dtype, options.kv_division);
        let page_bytes = kv_division.layer_page_bytes(config, kv_dtype, share).collect();
        let divided_pages = DividedPages::of(config, kv_dtype, kv_division, share);
        let activations = Activations::new(&mut backend, config, kv_division, rows_max)?;
        let angles =
            rope_kinds(config).iter().map(|rope| RopeAngles::new(rope, context_max)).collect();
        let shape = MemoryShape { kv_dtype, kv_division, pages, states };
        let memory = LayerMemory::of_model(&mut backend, config, shape)?;
        let streamed = options.streaming.as_ref().map(|_| options.activations);
        backend.prepare(&model_needs(&source, streamed, rows_max))?;
        let threads = options.load_threads;
        let loader = Loader::new(&mut backend, &*source, options.activations, threads);
        let loader = loader.divided(options.expert_division, kv_division);
        let loader = loader.replicated(options.expert_replicas);
        let (weights, mut experts) = match &options.streaming {
            None => loader.load(cancel, progress)?,
            Some(streaming) => {
                let weights = loader.load_dense(&streaming.reads, cancel, progress)?;
                let from = Arc::clone(&source);
                (weights, ExpertCache::streamed(from, options.activations, streaming, share)?)
            }
        };
        #[cfg(not(target_family = "wasm"))]
        experts.check_mapped(Arc::clone(&source))?;
        experts.enable_device_slots(&mut backend)?;
        let sensitivities = Arc::new(source.sensitivities());
        experts.set_level_router(Arc::new(ThresholdRule::new(sensitivities)));
        experts.set_recorder(options.recorder.clone());
        Ok(Self {
            backend,
            source,
            weights,
            experts,
            options: options.clone(),
            prepared: None,
            activations,
            memory,
            page_bytes,
            divided_pages,
            angles,
            limits,
            scratch: StepScratch::default(),
            replayed: None,
        })
    }

    /// Replays a recorded routing in the next step instead of the routers' choices.
    ///
    /// Used to compare devices, since devices may round near ties differently.
    pub fn replay(&mut self, routing: TraceStep) {
        self.replayed = Some(routing);
    }

    /// Returns the router of levels under dual routing.
    pub fn level_router(&self) -> Arc<dyn LevelRouter> {
        self.experts.level_router()
    }

    /// Sets the router of levels under dual routing.
    ///
    /// It is part of the model identity: KV caches computed with another router are invalid.
    pub fn set_level_router(&mut self, levels: Arc<dyn LevelRouter>) {
        self.experts.set_level_router(levels);
    }

    async fn run(
        &mut self,
        batch: &Batch,
        cancel: &CancelToken,
    ) -> Result<StepOutput, EngineError> {
        self.check(batch)?;
        let vocab_size = self.limits.vocab_size;
        if batch.rows.is_empty() {
            return Ok(StepOutput { vocab_size, ..StepOutput::default() });
        }
        let StepScratch {
            rows,
            logit_rows,
            angles,
            requests,
            predictions,
            embedded,
            output: spare,
        } = &mut self.scratch;
        rows.fill(batch);
        logit_rows.clear();
        let wanted = (0..).zip(&batch.rows).filter(|(_, row)| row.wants_logits);
        logit_rows.extend(wanted.map(|(index, _)| index));
        angles.resize_with(self.angles.len(), Vec::new);
        self.angles
            .iter()
            .zip(&mut *angles)
            .for_each(|(kind, angles)| kind.fill(&rows.positions, angles));
        let mut stats =
            StepStats { rows: rows.len(), logit_rows: logit_rows.len(), ..StepStats::default() };
        let rows_of_head =
            if batch.output == StepOutputKind::Hidden { 0 } else { logit_rows.len() };
        stats.weight_bytes = self.weights.step_bytes(rows, rows_of_head);
        let mut output = std::mem::take(spare);
        output.logits.clear();
        output.best.clear();
        output.hidden.clear();
        output.vocab_size = vocab_size;
        let replayed = self.replayed.take();
        let start_ns = self.options.recorder.as_ref().map(|recorder| recorder.now_ns());
        self.experts.begin_step()?;
        let step = Step {
            rows,
            logit_rows,
            angles,
            act: &mut self.activations,
            requests,
            predictions,
            embedded,
            memory: &mut self.memory,
            replayed: replayed.as_ref(),
            cancel,
            stats: &mut stats,
            output_kind: batch.output,
            output: &mut output,
        };
        let (eps, encoder) = (self.source.config().rms_norm_eps, self.backend.encoder());
        let computed = forward(&self.weights, &mut self.experts, eps, encoder, step).await;
        stats.streaming = self.experts.take_stats();
        stats.device = self.backend.take_counters();
        if let (Some(recorder), Some(start_ns)) = (&self.options.recorder, start_ns) {
            let (rows, end_ns) = (batch.rows.len(), recorder.now_ns());
            recorder.add_step(StepRecord { rows, start_ns, end_ns, streaming: stats.streaming });
        }
        computed?;
        output.stats = stats;
        output.failures = failures(batch, &output);
        Ok(output)
    }

    fn check(&self, batch: &Batch) -> Result<(), EngineError> {
        let limits = &self.limits;
        if batch.rows.len() > limits.rows_max {
            let (limit, found) = (limits.rows_max as u64, batch.rows.len() as u64);
            return Err(EngineError::Limit { what: "rows of a step", limit, found });
        }
        batch.check(limits.vocab_size, limits.context_max)?;
        let asked = batch.rows.iter().map(|row| row.levels.level_max()).max();
        match (asked, limits.level_max) {
            (Some(asked), Some(held)) if asked > held => {
                Err(EngineError::LevelMissing { asked: asked.bits(), held: held.bits() })
            }
            _ => Ok(()),
        }
    }
}

/// Returns the maximum length of contexts: the requested one, but none in which sparse attention would not select
/// all positions.
fn context_max(options: &RunnerOptions, config: &ModelConfig) -> usize {
    let limit = config.max_position_embeddings;
    // Default: all positions of the model.
    let requested = options.context_max.unwrap_or(limit);
    match config.context_limit {
        ContextLimit::Trained => requested,
        ContextLimit::Selection { .. } => requested.min(limit),
    }
}

fn check_limits<B: Backend>(config: &ModelConfig, backend: &B) -> Result<(), EngineError> {
    let limits = backend.limits();
    let mut found = Vec::new();
    for layer in &config.layers {
        let head_dim = match &layer.mixer {
            TokenMixer::Attention(attention) => attention.head_dim,
            TokenMixer::Latent(latent) => latent.key_dim(),
            TokenMixer::DeltaNet(shape) => shape.key_head_dim.max(shape.value_head_dim),
            TokenMixer::ShortConv(shape) => {
                found.push(("taps of short_conv", limits.conv_taps_max, shape.taps));
                0
            }
            TokenMixer::Mamba2(shape) => {
                found.push(("mamba_d_conv", limits.conv_taps_max, shape.conv_kernel));
                shape.head_dim.max(shape.state_size)
            }
        };
        found.push(("head_dim", limits.head_dim_max, head_dim));
        if let FeedForward::Moe { num_experts, num_experts_per_tok, .. } = layer.feed_forward {
            let per_token = limits.num_experts_per_tok_max;
            found.push(("num_experts", limits.num_experts_max, num_experts));
            found.push(("num_experts_per_tok", per_token, num_experts_per_tok));
        }
    }
    match found.into_iter().find(|(_, limit, found)| found > limit) {
        Some((what, limit, found)) => {
            Err(EngineError::Limit { what, limit: limit as u64, found: found as u64 })
        }
        None => Ok(()),
    }
}

/// Finds the sequences with a non-finite logit or hidden value.
///
/// A NaN anywhere in a sequence's past reaches both, since no operation hides one.
fn failures(batch: &Batch, output: &StepOutput) -> Vec<SequenceFailure> {
    let mut failures: Vec<SequenceFailure> = Vec::new();
    let rows = || batch.rows.iter().filter(|row| row.wants_logits);
    let (values, columns) = match batch.output {
        StepOutputKind::Hidden => (&output.hidden, output.hidden.len() / rows().count().max(1)),
        _ => (&output.logits, output.vocab_size),
    };
    let is_finite = |values: &[f32]| values.iter().all(|value| value.is_finite());
    let are_finite = values.chunks_exact(columns.max(1)).map(is_finite);
    // A step that returns the best tokens has no logits.
    let are_finite = are_finite.chain(output.best.iter().map(Option::is_some));
    for (row, is_finite) in rows().zip(are_finite) {
        let sequence = row.sequence as usize;
        let known = failures.iter().any(|failure| failure.sequence == sequence);
        if !known && !is_finite {
            let error = EngineError::NotFinite { sequence, position: row.position };
            failures.push(SequenceFailure { sequence, error });
        }
    }
    failures
}

impl<B: Backend> ModelRunner for Runner<B> {
    fn config(&self) -> &ModelConfig {
        self.source.config()
    }

    fn limits(&self) -> RunnerLimits {
        self.limits
    }

    fn step<'a>(&'a mut self, batch: &'a Batch, cancel: &'a CancelToken) -> StepFuture<'a> {
        Box::pin(self.run(batch, cancel))
    }

    fn step_blocking(
        &mut self,
        batch: &Batch,
        cancel: &CancelToken,
    ) -> Result<StepOutput, EngineError> {
        block_on(self.run(batch, cancel))
    }

    fn expert_memory(&self) -> Option<Arc<ExpertMemory>> {
        self.experts.memory().map(Arc::clone)
    }

    fn change_expert_memory(&mut self) -> Result<(), EngineError> {
        let Self { experts, backend, .. } = self;
        experts.change_memory(&mut backend.encoder())
    }

    fn routing_recorder(&self) -> Option<Arc<RoutingRecorder>> {
        Some(Arc::clone(self.experts.recorder()))
    }

    fn replicas(&mut self) -> Option<&mut dyn MovableReplicas> {
        (self.experts.placement().replicas_max() > 0).then_some(self)
    }

    fn recycle(&mut self, output: StepOutput) {
        self.scratch.output = output;
    }

    fn copy_page(&mut self, source: PageId, destination: PageId) -> Result<(), EngineError> {
        let Self { backend, memory, .. } = self;
        pages_of(memory).try_for_each(|pool| backend.copy_page(pool, source, destination))
    }

    fn read_page(&mut self, page: PageId) -> Result<Vec<u8>, EngineError> {
        let mut bytes = try_with_capacity("a page of keys and values", self.limits.page_bytes)?;
        for pool in pages_of(&mut self.memory) {
            self.backend.read_page(pool, page, &mut bytes)?;
        }
        Ok(bytes)
    }

    fn divided_pages(&self) -> Option<&DividedPages> {
        self.divided_pages.as_ref()
    }

    fn write_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), EngineError> {
        let expected = self.limits.page_bytes;
        if bytes.len() != expected {
            return Err(EngineError::mismatch("bytes of a page", expected, bytes.len()));
        }
        let Self { backend, memory, page_bytes, divided_pages, .. } = self;
        let own = divided_pages.as_ref().map(|pages| pages.own_part(bytes)).transpose()?;
        // Default: this rank holds all heads.
        let mut rest = own.as_deref().unwrap_or(bytes);
        for (pool, length) in pages_of(memory).zip(page_bytes) {
            let (own, others) = rest.split_at((*length).min(rest.len()));
            backend.write_page(pool, page, own)?;
            rest = others;
        }
        Ok(())
    }

    fn read_state(&mut self, state: StateId) -> Result<Vec<u8>, EngineError> {
        let mut bytes = try_with_capacity("a recurrent state", self.limits.state_bytes)?;
        for pool in states_of(&mut self.memory) {
            self.backend.read_state(pool, state, &mut bytes)?;
        }
        Ok(bytes)
    }

    fn write_state(&mut self, state: StateId, bytes: &[u8]) -> Result<(), EngineError> {
        let expected = self.limits.state_bytes;
        if bytes.len() != expected {
            return Err(EngineError::mismatch("bytes of a state", expected, bytes.len()));
        }
        let layers = self.source.config().layers.iter();
        let shapes = layers.filter_map(|layer| StateShape::of_layer(layer, 0));
        let mut rest = bytes;
        for (pool, shape) in states_of(&mut self.memory).zip(shapes) {
            let (own, others) = rest.split_at(shape.state_bytes().min(rest.len()));
            self.backend.write_state(pool, state, own)?;
            rest = others;
        }
        Ok(())
    }
}

fn pages_of<B: Backend>(memory: &mut [LayerMemory<B>]) -> impl Iterator<Item = &mut B::KvPool> {
    memory.iter_mut().filter_map(|layer| layer.pages().ok())
}

fn states_of<B: Backend>(memory: &mut [LayerMemory<B>]) -> impl Iterator<Item = &mut B::StatePool> {
    memory.iter_mut().filter_map(|layer| layer.states().ok())
}
