//! Options of engines, models and generations; each kind apart, since they matter at different
//! times. Every default is a sensible choice: name what differs and take the rest from `default`.

use std::sync::Arc;
use std::time::Duration;

use nestling_formats::Level;
use serde::{Deserialize, Serialize};

use crate::constraint::ConstraintSource;
use crate::options_wire;
use crate::page_store::PageStore;
use crate::sampling_options::SamplingOptions;
use nestling_core::kv_cache::KvDtype;
use nestling_core::weights::ActivationMode;
use nestling_core::wire;
use nestling_cpu::ThreadPlacement;
use nestling_experts::dual::{DualOptions, LevelRouter};
use nestling_experts::expert::{HostExperts, Prefetch};
use nestling_experts::reads::ReadOptions;
use nestling_experts::record::Recorder;

/// How an engine runs. With serde, what is left out is the default, an unknown field is an error, and times are seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineOptions {
    /// Threads that compute; none means one for each core. Never changes a result.
    pub threads: Option<usize>,
    /// Whether those threads are bound to processors. Never changes a result.
    pub placement: ThreadPlacement,
    /// Bytes that weights, keys and values and scratch may take together; none is no limit.
    pub memory_budget: Option<u64>,
    /// Who runs the step loop.
    pub driver: Driver,
    /// How long generations under way should wait for a token at most while prompts of others are
    /// computed: prompts are cut to it, or to the nearest that the model allows
    /// ([`crate::ServiceStatus::gap_in_force`]). Never changes a result.
    #[serde(with = "wire::all_seconds")]
    pub gap_target: Duration,
    /// Generations that may wait for room at once; more are [`EngineError::Busy`].
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
            memory_budget: None,
            driver,
            gap_target: Duration::from_millis(200),
            waiting_max: 1024,
        }
    }
}

/// Who runs the step loop of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Driver {
    /// A thread of the engine.
    Thread,
    /// Whoever waits for an event, inside that call. For platforms without threads.
    Caller,
}

/// How a model is opened.
///
/// With serde, what is left out is the default, an unknown field is an error, and levels are their bits. What is code
/// (`level_router`, `page_store`, `recorder`) is neither read nor written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelOptions {
    /// Bits of every weight to use; none means all that the store holds. Without meaning for a
    /// checkpoint that is run unquantized.
    #[serde(with = "options_wire::level")]
    pub level: Option<Level>,
    /// Bytes that weights may take: every matrix of a store gets a level of its own, at most
    /// `level`, so that the error is least; see [`nestling_experts::allocation`]. None means one level for
    /// all. Without meaning for a checkpoint that is run unquantized.
    pub weight_budget: Option<u64>,
    /// Levels of each token's experts by dual routing, at most `level`; see [`nestling_experts::dual`]. None
    /// means one level for all. Without meaning for a checkpoint that is run unquantized.
    #[serde(with = "options_wire::dual")]
    pub dual: Option<DualOptions>,
    /// What decides levels under `dual`, a trained router for example; none is the rule that is built
    /// in. Its identity is part of the model's.
    #[serde(
        skip_deserializing,
        skip_serializing_if = "Option::is_none",
        serialize_with = "options_wire::no_code"
    )]
    pub level_router: Option<Arc<dyn LevelRouter>>,
    /// Element type of keys and values.
    pub kv_dtype: KvDtype,
    /// Most tokens of one session; none means what the model was trained for, at most 8192.
    pub context_length: Option<usize>,
    /// Tokens whose keys and values all sessions may hold together; none means twice the context
    /// length. Sessions beyond it wait, or compute their history again.
    pub kv_tokens: Option<usize>,
    /// Recurrent states that all sessions may hold together, for models that have such; none means
    /// four for every context of `kv_tokens`. A session that is computed holds two at the least, and
    /// keeps up to two of earlier positions for going back.
    pub recurrent_states: Option<usize>,
    /// Whether sessions share what was computed for the same beginning. Never changes a result in strict mode.
    pub prefixes: Prefixes,
    /// Where what is shared is kept beside memory, for later and for other processes; none keeps nothing. Without
    /// meaning for [`Prefixes::Alone`] and under dual routing in elastic mode. Never changes a result.
    #[serde(
        skip_deserializing,
        skip_serializing_if = "Option::is_none",
        serialize_with = "options_wire::no_code"
    )]
    pub page_store: Option<PageStore>,
    /// Most rows of one step. Longer prompts are computed in pieces of at most this many tokens,
    /// of fewer where a layer would take too long to be cancelled.
    pub rows_max: usize,
    /// How nested weights are multiplied.
    pub activation_mode: ActivationMode,
    /// Where experts are while the model runs. Never changes a result in strict mode.
    pub residence: Residence,
    /// How planes of streamed experts are read. Never changes a result.
    pub reads: ReadOptions,
    /// Who hears of what the model does. Never changes a result.
    #[serde(
        skip_deserializing,
        skip_serializing_if = "Option::is_none",
        serialize_with = "options_wire::no_code"
    )]
    pub recorder: Option<Arc<Recorder>>,
    /// Whether they are read before a layer asks for them. Never changes a result.
    pub prefetch: Prefetch,
    /// Who computes streamed experts that a device keeps in memory of the host. Never changes a result in
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
            residence: Residence::default(),
            reads: ReadOptions::default(),
            recorder: None,
            prefetch: Prefetch::default(),
            host_experts: HostExperts::default(),
        }
    }
}

/// Whether sessions share what was computed for the same beginning of their histories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Prefixes {
    /// Pages keep their contents until they are wanted for others, and are found by the tokens that they were
    /// computed for; except under dual routing in elastic mode, where they depend on more.
    #[default]
    Shared,
    /// Sessions share nothing but what they were forked with.
    Alone,
}

/// Where the experts of a store are while its model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Residence {
    /// In memory if all of them fit the engine's budget, streamed otherwise.
    #[default]
    Auto,
    /// In memory, all of them.
    Owned,
    /// As many planes as the budget has room for; others are read when they are wanted.
    Streamed,
    /// In memory if all of them fit the engine's budget, streamed otherwise; but a model is open before
    /// they are there. Those that are wanted are read first, the others while it runs.
    Lazy,
}

/// How one answer is generated. The same options do for any number of answers: what cancels one
/// belongs to its [`crate::Generation`].
///
/// With serde, what is left out is the default, and an unknown field is an error; levels are their bits, and times
/// are seconds.
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
    /// How tokens are chosen; what it does not say is as the model's own `generation_config.json` has it.
    pub sampling: SamplingOptions,
    /// Most tokens to generate; none means until the model ends or the context is full. With 0
    /// the prompt is computed and kept for what comes after.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// Tokens that end the answer, besides the model's own.
    pub stop_tokens: Vec<u32>,
    /// Whether the model's own end tokens are tokens like others.
    pub ignore_end: bool,
    /// Whether special tokens have a text.
    pub show_special: bool,
    /// Whether every token is an event of its own; asking for log-probabilities implies it.
    pub token_events: bool,
    /// Log-probabilities of the prompt's tokens, and with each those of so many most likely ones, as
    /// [`crate::Event::PromptToken`]. The whole prompt is computed then, whatever the session holds of it.
    pub prompt_logprobs: Option<usize>,
    /// Hidden rows of the prompt, as [`crate::Event::Hidden`]: embeddings, with `max_tokens` 0.
    pub hidden: Option<HiddenRows>,
    /// Level to compute with; none means that of the model. The highest under dual routing.
    #[serde(with = "options_wire::level")]
    pub level: Option<Level>,
    /// Levels by dual routing, for a model that was opened with it; none means as it was opened.
    #[serde(with = "options_wire::dual")]
    pub dual: Option<DualOptions>,
    /// What the answer must look like. Tokens that do not fit are never chosen, on any device; an answer that
    /// `max_tokens` cuts off may be incomplete, and says so ([`crate::FinishReason::Length`]), as may one that a stop
    /// string ends. It is code, so that serde neither reads nor writes options with one.
    #[serde(
        skip_deserializing,
        skip_serializing_if = "Option::is_none",
        serialize_with = "options_wire::no_code"
    )]
    pub constraint: Option<Arc<dyn ConstraintSource>>,
    /// Events that may wait to be read before the generation pauses.
    pub events_max: usize,
    /// Generations with a greater number go first, and lose their pages last. Whoever waits counts for
    /// more with time. Never changes a result.
    pub priority: i8,
    /// In how long the first token is wanted. It goes before others of its priority while it can still be in
    /// time; [`crate::Stats::is_late`] tells of one that was not.
    #[serde(with = "wire::seconds")]
    pub deadline: Option<Duration>,
    /// Whose prefixes it shares: pages that were computed for the same beginning with the same salt are not computed
    /// again, which is visible in the time of the first token. None shares with all others that have none.
    pub cache_salt: Option<String>,
    /// Whose generation it is, a user's for example: prompts of one group share what a group without others
    /// has alone. None is a group of its own.
    pub group: Option<u64>,
}

/// Which tokens of a prompt have their hidden rows given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HiddenRows {
    /// The last one.
    Last,
    /// All of them. The whole prompt is computed then, whatever the session holds of it.
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
    /// Always the likeliest token.
    pub fn greedy() -> Self {
        Self { sampling: SamplingOptions::greedy(), ..Self::default() }
    }
}
