//! A model without weights: the next token is a hash of the history.
//!
//! The hash is computed from the contents of the pages or the recurrent states. Any mistake with pages,
//! states, positions or batches therefore changes the output.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nestling_core::batch::{Batch, StepOutputKind};
use nestling_core::kv_cache::{PAGE_POSITIONS, PageId};
use nestling_core::recurrent::{StateId, StateTrack};
use nestling_core::runner::{RunnerLimits, SequenceFailure, StepFuture, StepStats};
use nestling_core::{CancelToken, EngineError, ModelRunner, StepOutput};
use nestling_import::ModelConfig;
use nestling_runtime::{
    Driver, Engine, EngineOptions, Event, GenerateOptions, Generation, GenerationSummary, Model,
    ModelIdentity, ModelParts, Prefixes, SamplingParams,
};
use nestling_text::{ChatTemplate, Tokenizer};

const CONFIG: &str = r#"{
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 211,
    "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
    "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": true, "decoder_sparse_step": 1,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": false
}"#;

pub const VOCAB: usize = 211;
/// Token whose history yields non-finite logits.
pub const POISON: u32 = 200;
/// Token that fails its whole step without naming a sequence.
pub const BREAKS_STEP: u32 = 201;
/// Token that makes its step panic.
pub const PANICS: u32 = 202;

/// Token that loses the device.
pub const LOSES_DEVICE: u32 = 203;

/// Token that makes reading its page panic.
pub const PANICS_WHEN_READ: u32 = 204;

/// Counters of the runner's activity.
#[derive(Default)]
pub struct RunnerCounters {
    pub steps: AtomicUsize,
    pub rows: AtomicUsize,
    pub logit_rows: AtomicUsize,
    /// Rows for which the highest logit sufficed.
    pub best_rows: AtomicUsize,
    pub sequences_max: AtomicUsize,
    pub dropped: AtomicUsize,
}

pub struct FakeRunner {
    pub limits: RunnerLimits,
    config: ModelConfig,
    pages: Vec<[u32; PAGE_POSITIONS]>,
    states: Vec<HistoryHash>,
    /// Duration of a step, which checks for cancellation each millisecond, as if at each layer.
    pub step_time: Duration,
    pub seen: Arc<RunnerCounters>,
}

/// Contents of a recurrent state: a hash of the history and its number of tokens.
#[derive(Clone, Copy)]
struct HistoryHash {
    length: usize,
    hash: u64,
}

impl HistoryHash {
    const EMPTY: Self = Self { length: 0, hash: 0x9e37_79b9_u64 };

    fn push(&mut self, token: u32) {
        self.length += 1;
        self.hash = (self.hash ^ u64::from(token)).wrapping_mul(0x0000_0100_0000_01b3);
    }
}

impl FakeRunner {
    /// Creates a model that also has recurrent layers.
    pub fn recurrent(context_max: usize, rows_max: usize, pages: usize, states: usize) -> Self {
        let mut runner = Self::new(context_max, rows_max, pages);
        (runner.limits.states, runner.limits.state_bytes) = (states, 16);
        runner.states = vec![HistoryHash { length: usize::MAX, hash: 0 }; states];
        runner
    }

    pub fn new(context_max: usize, rows_max: usize, pages: usize) -> Self {
        let limits = RunnerLimits {
            vocab_size: VOCAB,
            context_max,
            rows_max,
            pages,
            page_bytes: PAGE_POSITIONS * 4,
            states: 0,
            state_bytes: 0,
            prompt_steps: nestling_core::runner::PromptSteps::Timed,
            level_max: Some(nestling_formats::Level::L8),
        };
        let pages = vec![[u32::MAX; PAGE_POSITIONS]; pages];
        let config = ModelConfig::from_json("config.json", CONFIG.as_bytes()).unwrap();
        let states = Vec::new();
        Self { limits, config, pages, states, step_time: Duration::ZERO, seen: Arc::default() }
    }

    fn compute(&mut self, batch: &Batch, cancel: &CancelToken) -> Result<StepOutput, EngineError> {
        batch.check(VOCAB, self.limits.context_max)?;
        assert!(!batch.rows.is_empty() && batch.rows.len() <= self.limits.rows_max);
        for _ in 0..self.step_time.as_millis() {
            if cancel.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut output = StepOutput { vocab_size: VOCAB, ..StepOutput::default() };
        let tracks = batch.sequences.iter().map(|sequence| &sequence.states);
        let mut passed: Vec<_> = tracks.clone().map(|track| self.state_before(track)).collect();
        let tracks: Vec<_> = tracks.collect();
        for row in &batch.rows {
            let pages = &batch.sequences[row.sequence as usize].pages;
            let place = |position: usize| {
                (pages[position / PAGE_POSITIONS].0 as usize, position % PAGE_POSITIONS)
            };
            let (page, slot) = place(row.position as usize);
            self.pages[page][slot] = row.token;
            if !self.states.is_empty() {
                let sequence = row.sequence as usize;
                self.pass(&mut passed[sequence], tracks[sequence], row.token);
            }
            if row.token == BREAKS_STEP {
                return Err(EngineError::mismatch("a row", "anything else", row.token));
            }
            if row.token == LOSES_DEVICE {
                return Err(EngineError::DeviceLost("as asked".into()));
            }
            assert_ne!(row.token, PANICS, "as asked");
            if !row.wants_logits {
                continue;
            }
            let history: Vec<u32> = (0..=row.position as usize)
                .map(|position| self.pages[place(position).0][place(position).1])
                .collect();
            let mut wanted = HistoryHash::EMPTY;
            history.iter().for_each(|token| wanted.push(*token));
            if !self.states.is_empty() {
                assert_eq!(passed[row.sequence as usize].length, wanted.length);
                wanted = passed[row.sequence as usize];
            }
            if history.contains(&POISON) {
                let error = EngineError::NotFinite { sequence: 0, position: row.position };
                output.failures.push(SequenceFailure { sequence: row.sequence as usize, error });
            }
            if batch.output.has_hidden() {
                output.hidden.extend(hidden_of(wanted));
            }
            match batch.output {
                StepOutputKind::Hidden => {}
                StepOutputKind::Logits | StepOutputKind::HiddenAndLogits => {
                    output.logits.extend(logits_of(wanted.hash));
                }
                StepOutputKind::Argmax(among) => {
                    let is_damaged = history.contains(&POISON);
                    let best = best_of(&logits_of(wanted.hash)[..among]);
                    output.best.push((!is_damaged).then_some(best));
                    self.seen.best_rows.fetch_add(1, Ordering::Relaxed);
                }
            }
            output.stats.logit_rows += 1;
        }
        output.stats = StepStats { rows: batch.rows.len(), ..output.stats };
        self.seen.steps.fetch_add(1, Ordering::Relaxed);
        self.seen.rows.fetch_add(batch.rows.len(), Ordering::Relaxed);
        self.seen.logit_rows.fetch_add(output.stats.logit_rows, Ordering::Relaxed);
        self.seen.sequences_max.fetch_max(batch.sequences.len(), Ordering::Relaxed);
        Ok(output)
    }
}

impl FakeRunner {
    fn state_before(&self, track: &StateTrack) -> HistoryHash {
        track.from.map_or(HistoryHash::EMPTY, |state| self.states[state.0 as usize])
    }

    /// Advances a state by one token, and stores it where the step requests.
    fn pass(&mut self, state: &mut HistoryHash, track: &StateTrack, token: u32) {
        state.push(token);
        for to in track.to.iter().filter(|to| to.length == state.length) {
            assert_ne!(Some(to.state), track.from, "the state before a step stays");
            self.states[to.state.0 as usize] = *state;
        }
    }
}

impl Drop for FakeRunner {
    fn drop(&mut self) {
        self.seen.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl ModelRunner for FakeRunner {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn limits(&self) -> RunnerLimits {
        self.limits
    }

    fn step<'a>(&'a mut self, batch: &'a Batch, cancel: &'a CancelToken) -> StepFuture<'a> {
        Box::pin(async move { self.compute(batch, cancel) })
    }

    fn copy_page(&mut self, source: PageId, destination: PageId) -> Result<(), EngineError> {
        self.pages[destination.0 as usize] = self.pages[source.0 as usize];
        Ok(())
    }

    fn read_page(&mut self, page: PageId) -> Result<Vec<u8>, EngineError> {
        assert!(!self.pages[page.0 as usize].contains(&PANICS_WHEN_READ), "as asked");
        Ok(self.pages[page.0 as usize].iter().flat_map(|token| token.to_le_bytes()).collect())
    }

    fn read_state(&mut self, state: StateId) -> Result<Vec<u8>, EngineError> {
        let HistoryHash { length, hash } = self.states[state.0 as usize];
        Ok([(length as u64).to_le_bytes(), hash.to_le_bytes()].concat())
    }

    fn write_state(&mut self, state: StateId, bytes: &[u8]) -> Result<(), EngineError> {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let hash = HistoryHash { length: number(0) as usize, hash: number(8) };
        self.states[state.0 as usize] = hash;
        Ok(())
    }

    fn write_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), EngineError> {
        for (token, bytes) in self.pages[page.0 as usize].iter_mut().zip(bytes.chunks_exact(4)) {
            *token = u32::from_le_bytes(bytes.try_into().unwrap());
        }
        Ok(())
    }
}

/// Returns the logits after a history, in which one token stands out.
pub fn logits(history: &[u32]) -> Vec<f32> {
    let mut hash = HistoryHash::EMPTY;
    history.iter().for_each(|token| hash.push(*token));
    logits_of(hash.hash)
}

fn logits_of(hash: u64) -> Vec<f32> {
    let chosen = (hash >> 20) as usize % POISON as usize;
    (0..VOCAB).map(|token| if token == chosen { 9.0 } else { (token % 7) as f32 * 0.1 }).collect()
}

/// Returns the hidden row after a history.
pub fn hidden(history: &[u32]) -> Vec<f32> {
    let mut hash = HistoryHash::EMPTY;
    history.iter().for_each(|token| hash.push(*token));
    hidden_of(hash).to_vec()
}

fn hidden_of(history: HistoryHash) -> [f32; 3] {
    let part = |shift: u32| (history.hash >> shift & 0xffff) as f32;
    [history.length as f32, part(8), part(30)]
}

/// Returns the expected output of greedy decoding.
pub fn expected(prompt: &[u32], count: usize) -> Vec<u32> {
    let mut history = prompt.to_vec();
    for _ in 0..count {
        let logits = logits(&history);
        history.push(best_of(&logits));
    }
    history.split_off(prompt.len())
}

fn best_of(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}

pub fn engine() -> Engine {
    Engine::new(EngineOptions::default()).unwrap()
}

/// Returns an engine that computes inside the calls of waiting readers.
pub fn caller_engine() -> Engine {
    Engine::new(EngineOptions { driver: Driver::Caller, ..EngineOptions::default() }).unwrap()
}

pub fn model(engine: &Engine, runner: FakeRunner) -> Model {
    model_with(engine, runner, None)
}

/// Returns a model that accepts text.
pub fn model_with(engine: &Engine, runner: FakeRunner, tokenizer: Option<Tokenizer>) -> Model {
    model_of(engine, runner, tokenizer, None)
}

/// Returns a model that accepts text and messages.
pub fn model_of(
    engine: &Engine,
    runner: FakeRunner,
    tokenizer: Option<Tokenizer>,
    chat_template: Option<ChatTemplate>,
) -> Model {
    let limits = runner.limits;
    let parts = ModelParts { tokenizer, chat_template, ..parts_of(limits, Box::new(runner)) };
    Model::from_parts(engine, parts).unwrap()
}

/// Returns a model on a runner that wraps the fake one.
pub fn model_on(engine: &Engine, limits: RunnerLimits, runner: Box<dyn ModelRunner>) -> Model {
    Model::from_parts(engine, parts_of(limits, runner)).unwrap()
}

pub fn parts_of(limits: RunnerLimits, runner: Box<dyn ModelRunner>) -> ModelParts {
    ModelParts {
        runner,
        device: "fake".into(),
        identity: ModelIdentity { source: 7, ..ModelIdentity::default() },
        tokenizer: None,
        chat_template: None,
        sampling: SamplingParams::greedy(),
        end_tokens: vec![],
        context_length: limits.context_max,
        allocation: None,
        dual: None,
        weight_bytes: 0,
        experts: None,
        plan: None,
        prefixes: Prefixes::Shared,
        page_store: None,
        reservations: vec![],
    }
}

pub fn tokens_of(generation: Generation) -> Vec<u32> {
    let mut tokens = Vec::new();
    for event in generation {
        if let Event::Token(token) = event.unwrap() {
            tokens.push(token.token);
        }
    }
    tokens
}

pub fn greedy(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(max_tokens),
        token_events: true,
        ..GenerateOptions::greedy()
    }
}

pub fn prompt(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| (i * 31 + seed * 17 + i * i * 7) % 199).collect()
}

/// Waits for an effect of another thread. Fails after 120 seconds, far longer than any machine needs.
pub fn eventually(what: &str, condition: impl Fn() -> bool) -> Duration {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
    start.elapsed()
}

/// Returns the tokens of a generation with its end.
pub fn finish(generation: Generation) -> (Vec<u32>, GenerationSummary) {
    let (mut tokens, mut finished) = (Vec::new(), None);
    for event in generation {
        match event.unwrap() {
            Event::Token(token) => tokens.push(token.token),
            Event::Finished(end) => finished = Some(end),
            _ => {}
        }
    }
    (tokens, finished.unwrap())
}
