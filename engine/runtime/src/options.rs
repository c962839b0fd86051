//! Options of engines, models and generations.
//!
//! They are separate types, since they apply at different times. Set the fields that differ and take the rest
//! from `default`.

use std::sync::Arc;
use std::time::Duration;

use nestling_formats::Level;
use serde::{Deserialize, Serialize};

use crate::constraint::ConstraintSource;
use crate::options_wire;
use crate::page_store::PageStore;
use nestling_core::group::ExpertDivision;
use nestling_core::kv_cache::KvDtype;
use nestling_core::kv_heads::KvDivision;
use nestling_core::weights::ActivationMode;
use nestling_core::wire;
use nestling_cpu::ThreadPlacement;
use nestling_cpu::kernels::InstructionSet;
use nestling_experts::expert::{HostExperts, Prefetch};
use nestling_experts::reads::ReadOptions;
use nestling_experts::record::Recorder;
use nestling_levels::dual::{DualOptions, LevelRouter};
use nestling_text::SamplingOptions;

/// Maximum number of compute threads of an engine.
pub const THREADS_MAX: usize = 1024;

/// Options of an engine. In serde form, missing fields take their default, unknown fields are an error, and
/// times are in seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineOptions {
    /// Number of compute threads, at most [`THREADS_MAX`]. `None` and 0 mean one per core. Never changes a result.
    pub threads: Option<usize>,
    /// CPU affinity of the compute threads. Never changes a result.
    pub placement: ThreadPlacement,
    /// Instruction set of the CPU's kernels. Never changes a result.
    pub instruction_set: InstructionSet,
    /// Budget in bytes for weights, KV cache and scratch memory together. `None` means no limit.
    pub memory_budget: Option<u64>,
    /// Driver of the step loop.
    pub driver: Driver,
    /// Target for the maximum wait between two tokens of a running generation while other prompts are
    /// computed. Prompts are split into chunks that meet this target, or the nearest one possible with the
    /// model ([`crate::ServiceStatus::gap_in_force`]). Never changes a result.
    #[serde(with = "wire::all_seconds")]
    pub gap_target: Duration,
    /// Maximum number of waiting generations. Further ones fail with [`EngineError::Busy`].
    ///
    /// [`EngineError::Busy`]: nestling_core::EngineError::Busy
    pub waiting_max: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        let driver = if cfg!(target_family = "wasm") { Driver::Caller } else { Driver::Thread };
        let placement = ThreadPlacement::default();
        Self {
            threads: None,
            placement,
            instruction_set: InstructionSet::Fastest,
            memory_budget: None,
            driver,
            gap_target: Duration::from_millis(200),
            waiting_max: 1024,
        }
    }
}

/// Driver of an engine's step loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Driver {
    /// A thread of the engine.
    Thread,
    /// The caller that waits for an event, within that call. For platforms without threads.
    Caller,
}

/// Options for opening a model.
///
/// In serde form, missing fields take their default, unknown fields are an error, and levels are numbers of
/// bits. Fields that hold code (`level_router`, `page_store`, `recorder`) cannot be read or written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelOptions {
    /// Level of all weights. `None` means the highest level of the store. Ignored for unquantized
    /// checkpoints.
    #[serde(with = "options_wire::level")]
    pub level: Option<Level>,
    /// Budget for weights in bytes, which gives each matrix a level of at most `level` so that the error is
    /// minimal. See [`nestling_levels::allocation`]. `None` means one level for all matrices. Ignored for
    /// unquantized checkpoints.
    pub weight_budget: Option<u64>,
    /// Dual routing: levels of at most `level` chosen for each token's experts; see
    /// [`nestling_levels::dual`].
    ///
    /// `None` means one level for all. Ignored for unquantized checkpoints.
    #[serde(with = "options_wire::dual")]
    pub dual: Option<DualOptions>,
    /// Level router for `dual`, such as a trained one. `None` means the built-in rule. Its fingerprint is
    /// part of the model identity.
    #[serde(
        skip_deserializing,
        skip_serializing_if = "Option::is_none",
        serialize_with = "options_wire::no_code"
    )]
    pub level_router: Option<Arc<dyn LevelRouter>>,
    /// Element type of the KV cache.
    pub kv_dtype: KvDtype,
    /// Maximum number of tokens per session, at most the trained context length. `None` and 0 mean the trained
    /// context length, at most 8192; [`crate::Model::context_length`] returns the value in effect.
    pub context_length: Option<usize>,
    /// Capacity of the KV cache in tokens, for all sessions together. `None` means twice the context length.
    /// Sessions beyond it wait, or recompute their history.
    pub kv_tokens: Option<usize>,
    /// Number of recurrent states for all sessions together, for models with recurrent layers. `None` means
    /// four per context of `kv_tokens`. A running session holds at least two, and retains up to two of
    /// earlier positions for going back.
    pub recurrent_states: Option<usize>,
    /// Sharing of computed prefixes among sessions. Never changes a result in strict mode.
    pub prefixes: Prefixes,
    /// Page store on disk for shared prefixes, for later use and for other processes. `None` stores nothing.
    /// Ignored with [`Prefixes::Alone`] and under dual routing in elastic mode. Never changes a result.
    #[serde(
        skip_deserializing,
        skip_serializing_if = "Option::is_none",
        serialize_with = "options_wire::no_code"
    )]
    pub page_store: Option<PageStore>,
    /// Maximum number of rows per step. Longer prompts are split into chunks of at most this size, or less if
    /// a layer would take too long to respond to cancellation.
    pub rows_max: usize,
    /// Arithmetic used for nested weights.
    pub activation_mode: ActivationMode,
    /// Maximum bytes of the engine's memory budget for the model. `None` means all that is free when it is opened.
    pub memory_limit: Option<u64>,
    /// Residence of the experts. Never changes a result in strict mode.
    pub residence: Residence,
    /// Division of the experts if the model is opened over ranks. Sliced ones must all be in memory. Never changes a
    /// result.
    pub expert_division: ExpertDivision,
    /// Division of keys and values, and of the attention that reads them, if the model is opened over ranks. With
    /// [`KvDivision::ByHeads`], a lost rank is not replaced. Never changes a result.
    pub kv_division: KvDivision,
    /// Maximum experts of each layer that every rank holds if the model is opened over ranks: the most frequent ones by
    /// calibration, and later by use. All experts must be in memory then. Never changes a result.
    pub expert_replicas: usize,
    /// Options for reading planes of streamed experts. Never changes a result.
    pub reads: ReadOptions,
    /// Recorder of events inside the model. Never changes a result.
    #[serde(
        skip_deserializing,
        skip_serializing_if = "Option::is_none",
        serialize_with = "options_wire::no_code"
    )]
    pub recorder: Option<Arc<Recorder>>,
    /// Prefetching of streamed experts. Never changes a result.
    pub prefetch: Prefetch,
    /// Processor for streamed experts that a device model keeps in host memory. Never changes a result in
    /// strict mode.
    pub host_experts: HostExperts,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self {
            level: None,
            weight_budget: None,
            dual: None,
            level_router: None,
            kv_dtype: KvDtype::F16,
            context_length: None,
            kv_tokens: None,
            recurrent_states: None,
            prefixes: Prefixes::default(),
            page_store: None,
            rows_max: 512,
            activation_mode: ActivationMode::default(),
            memory_limit: None,
            residence: Residence::default(),
            expert_division: ExpertDivision::default(),
            kv_division: KvDivision::default(),
            expert_replicas: 0,
            reads: ReadOptions::default(),
            recorder: None,
            prefetch: Prefetch::default(),
            host_experts: HostExperts::default(),
        }
    }
}

/// Sharing of computed prefixes among the sessions of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Prefixes {
    /// Pages retain their contents until they are reused, and are found by the tokens that they were computed
    /// for.
    ///
    /// Pages under dual routing in elastic mode are not shared, since they depend on more than the tokens.
    #[default]
    Shared,
    /// Sessions share only the pages that a fork inherits.
    Alone,
}

/// Residence of a store's experts while its model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Residence {
    /// Resident if all experts fit the engine's budget, otherwise streamed.
    #[default]
    Auto,
    /// All experts in memory.
    Owned,
    /// Planes in memory as far as the budget allows; others are read on demand.
    Streamed,
    /// Resident if all experts fit the engine's budget, otherwise streamed, but the model opens before they
    /// are read.
    ///
    /// Experts in demand are read first, the others while the model runs.
    Lazy,
}

/// Options of one generation. They can be reused; cancellation belongs to the [`crate::Generation`].
///
/// In serde form, missing fields take their default, unknown fields are an error, levels are numbers of bits,
/// and times are in seconds.
///
/// ```
/// use nestling_runtime::GenerateOptions;
///
/// let json = r#"{"max_tokens": 200, "sampling": {"temperature": 0.7}, "level": 4, "deadline": 0.5}"#;
/// let options: GenerateOptions = serde_json::from_str(json)?;
/// assert_eq!((options.max_tokens, options.sampling.temperature), (Some(200), Some(0.7)));
/// assert!(serde_json::from_str::<GenerateOptions>(r#"{"max_token": 200}"#).is_err());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GenerateOptions {
    /// Sampling settings. Unset fields use the model's `generation_config.json`.
    pub sampling: SamplingOptions,
    /// Maximum number of tokens to generate. `None` means until the model ends or the context is full. With 0
    /// the prompt is only computed and cached for later generations.
    pub max_tokens: Option<usize>,
    /// Stop strings. They end the output and are not part of it.
    pub stop: Vec<String>,
    /// Token ids that end the output, in addition to the model's own.
    pub stop_tokens: Vec<u32>,
    /// True to treat the model's end tokens as ordinary tokens.
    pub ignore_end: bool,
    /// True to include the text of special tokens in the output.
    pub show_special: bool,
    /// True to send an event for each token. Requesting log-probabilities implies it.
    pub token_events: bool,
    /// Number of likeliest tokens to report with the log-probability of each prompt token, as
    /// [`crate::Event::PromptToken`].
    ///
    /// If set, the prompt is computed from `prompt_logprobs_from` on, even if the session has it cached.
    pub prompt_logprobs: Option<usize>,
    /// Index of the first prompt token that `prompt_logprobs` reports. Ignored if `hidden` is set.
    pub prompt_logprobs_from: usize,
    /// Hidden rows of the prompt to report as [`crate::Event::Hidden`]. With `max_tokens` 0 they serve as
    /// embeddings.
    pub hidden: Option<HiddenRows>,
    /// Level of the computation; under dual routing, the highest. `None` means the level of the model.
    #[serde(with = "options_wire::level")]
    pub level: Option<Level>,
    /// Dual routing settings, for a model opened with it. `None` means the settings that the model was opened
    /// with.
    #[serde(with = "options_wire::dual")]
    pub dual: Option<DualOptions>,
    /// Constraint on the output. Tokens that it does not allow are never chosen, on any device. An output cut
    /// off by `max_tokens` may be incomplete, as [`crate::FinishReason::Length`] reports; so may one ended by
    /// a stop string. The field holds code, so serde can neither read nor write it.
    #[serde(
        skip_deserializing,
        skip_serializing_if = "Option::is_none",
        serialize_with = "options_wire::no_code"
    )]
    pub constraint: Option<Arc<dyn ConstraintSource>>,
    /// Maximum number of unread events before the generation pauses.
    pub events_max: usize,
    /// Priority: generations with a greater value run first and are preempted last. The priority of a waiting
    /// generation rises with time. Never changes a result.
    pub priority: i8,
    /// Deadline for the first token, relative to the call. It precedes others of its priority while it can
    /// still be met.
    ///
    /// [`crate::Stats::is_late`] reports a missed deadline.
    #[serde(with = "wire::seconds")]
    pub deadline: Option<Duration>,
    /// Salt of the shared prefixes: pages are shared only between generations with the same salt. Sharing is
    /// visible in the time to the first token. Generations without a salt share with each other.
    pub cache_salt: Option<String>,
    /// Scheduling group, such as a user: prompts of one group together get the share of a single group.
    /// `None` makes the generation a group of one.
    pub group: Option<u64>,
}

/// Selection of the prompt tokens whose hidden rows are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HiddenRows {
    /// The last token.
    Last,
    /// All tokens. The whole prompt is computed, even if the session has it cached.
    All,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            sampling: SamplingOptions::default(),
            max_tokens: None,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            ignore_end: false,
            show_special: false,
            token_events: false,
            prompt_logprobs: None,
            prompt_logprobs_from: 0,
            hidden: None,
            level: None,
            dual: None,
            constraint: None,
            events_max: 64,
            priority: 0,
            deadline: None,
            cache_salt: None,
            group: None,
        }
    }
}

impl GenerateOptions {
    /// Returns options for greedy decoding.
    pub fn greedy() -> Self {
        Self { sampling: SamplingOptions::greedy(), ..Self::default() }
    }
}
