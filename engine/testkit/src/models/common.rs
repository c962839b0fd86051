//! The bundled model on any backend, and helpers for its steps.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nestling_core::EngineError;
use nestling_core::backend::Backend;
use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef, StepOutputKind};
use nestling_core::cancel::CancelToken;
use nestling_core::kv_cache::{KvDtype, PageId, pages_for};
use nestling_core::routing_trace::TraceStep;
use nestling_core::runner::{ModelRunner, StepOutput};
use nestling_core::weights::ActivationMode;
use nestling_cpu::Cpu;
use nestling_experts::expert::{
    ExpertSource, HostExperts, HostOptions, Prefetch, StoreSource, StreamOptions,
};
use nestling_experts::reads::ReadOptions;
use nestling_formats::Level;
use nestling_formats::store::Store;
use nestling_import::Checkpoint;
use nestling_runtime::model::{Runner, RunnerOptions};
use nestling_text::{EncodeOptions, SpecialText, Tokenizer};

use crate::convert_once;

/// A model, and a text for it.
pub struct Parts {
    pub source: Arc<dyn ExpertSource>,
    /// Tokens of the validation text, which is independent of the model's training and quantization.
    pub text: Vec<u32>,
}

/// Returns the root of the test data: the source tree, or the folder in NESTLING_TEST_ROOT with the same
/// layout, for tests on another machine than the build machine.
pub fn root() -> PathBuf {
    let elsewhere = std::env::var_os("NESTLING_TEST_ROOT").map(PathBuf::from);
    elsewhere.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
}

/// Opens the tiny checkpoint of a family.
pub fn family(name: &str) -> Checkpoint {
    Checkpoint::open(directory(name)).unwrap()
}

fn directory(name: &str) -> PathBuf {
    root().join("engine/runtime/tests/data/families").join(name)
}

pub fn store_path() -> PathBuf {
    root().join("models/nestling-storyteller.nest")
}

/// Returns an error message if the bundled store is missing.
pub fn lacks_store() -> Option<String> {
    let path = store_path();
    (!path.is_file()).then(|| format!("no {}", path.display()))
}

/// Opens the bundled store at a level, by default the highest.
pub fn parts(level: Option<Level>) -> Parts {
    let path = store_path();
    let store = Arc::new(Store::open(&path).unwrap());
    let tokenizer = store.asset("tokenizer.json").unwrap().unwrap();
    let tokenizer = Tokenizer::from_bytes("tokenizer.json", &tokenizer).unwrap();
    let text = std::fs::read_to_string(root().join("data/validation.txt")).unwrap();
    let end = text.char_indices().nth(40_000).map_or(text.len(), |(at, _)| at);
    let options = EncodeOptions { add_special_tokens: false, special_text: SpecialText::Plain };
    let text = tokenizer.encode(&text[..end], options).unwrap();
    let source = StoreSource::owned(store, level).unwrap();
    Parts { source: Arc::new(source), text }
}

/// Number of tokens in a text: two pages.
pub const TOKENS: usize = 70;

/// Converts the tiny checkpoint of a family and generates a text.
pub fn converted(name: &str, folder: &Path) -> Parts {
    let vocabulary = family(name).config().vocab_size as u32;
    let path = folder.join("tiny.nest");
    convert_once(&directory(name), &path);
    let source = StoreSource::owned(Arc::new(Store::open(path).unwrap()), None).unwrap();
    let text = (0..TOKENS as u32).map(|at| at * 7919 % vocabulary).collect();
    Parts { source: Arc::new(source), text }
}

/// Returns options that stream experts within a budget, without prefetching.
pub fn streaming(budget_bytes: u64, experts: HostExperts) -> StreamOptions {
    let host = HostOptions { experts, threads: 2 };
    StreamOptions { budget_bytes, reads: ReadOptions::default(), prefetch: Prefetch::Off, host }
}

impl Parts {
    /// Loads the model on a backend, with streamed experts if there is a budget.
    pub fn runner<B: Backend>(
        &self,
        backend: B,
        activations: ActivationMode,
        expert_budget: Option<u64>,
    ) -> Runner<B> {
        self.try_runner(backend, activations, expert_budget).unwrap()
    }

    /// Works like [`Parts::runner`], but returns errors.
    pub fn try_runner<B: Backend>(
        &self,
        backend: B,
        activations: ActivationMode,
        expert_budget: Option<u64>,
    ) -> Result<Runner<B>, EngineError> {
        let streaming = expert_budget.map(|budget| streaming(budget, HostExperts::Never));
        self.try_streamed(backend, activations, streaming)
    }

    /// Works like [`Parts::try_runner`], with complete streaming options.
    pub fn try_streamed<B: Backend>(
        &self,
        backend: B,
        activations: ActivationMode,
        streaming: Option<StreamOptions>,
    ) -> Result<Runner<B>, EngineError> {
        self.try_with(backend, &Self::options(activations, streaming))
    }

    /// Returns the options of a runner.
    pub fn options(activations: ActivationMode, streaming: Option<StreamOptions>) -> RunnerOptions {
        RunnerOptions {
            rows_max: ROWS_MAX,
            kv_pages: Some(PAGES),
            kv_dtype: KvDtype::F16,
            streaming,
            activations,
            load_threads: 2,
            ..RunnerOptions::default()
        }
    }

    /// Works like [`Parts::try_runner`], with all options.
    pub fn try_with<B: Backend>(
        &self,
        backend: B,
        options: &RunnerOptions,
    ) -> Result<Runner<B>, EngineError> {
        let cancel = CancelToken::new();
        let source = Arc::clone(&self.source);
        Runner::load(backend, source, options, &cancel, &mut |_, _| {})
    }

    pub fn on_cpu(&self, activations: ActivationMode) -> Runner<Cpu> {
        self.runner(Cpu::new(2), activations, None)
    }
}

const PAGES: usize = 8;

/// Maximum number of rows of a step.
pub const ROWS_MAX: usize = 64;

/// Computes rows from position `first` on, in the only sequence.
pub fn step(
    runner: &mut dyn ModelRunner,
    rows: (usize, &[u32]),
    wants: impl Fn(usize) -> bool,
) -> StepOutput {
    try_step(runner, rows, wants).unwrap()
}

/// Works like [`step`], but returns errors.
pub fn try_step(
    runner: &mut dyn ModelRunner,
    rows: (usize, &[u32]),
    wants: impl Fn(usize) -> bool,
) -> Result<StepOutput, EngineError> {
    step_for(runner, rows, (StepOutputKind::Logits, wants))
}

/// Works like [`try_step`], for other outputs than logits.
pub fn step_for(
    runner: &mut dyn ModelRunner,
    rows: (usize, &[u32]),
    (wanted, wants): (StepOutputKind, impl Fn(usize) -> bool),
) -> Result<StepOutput, EngineError> {
    let levels = LevelPolicy::Fixed(runner.limits().level_max.unwrap_or(Level::L8));
    computed(runner, rows, (levels, wanted), wants)
}

/// Works like [`try_step`], for other levels than the highest.
pub fn try_step_at(
    runner: &mut dyn ModelRunner,
    rows: (usize, &[u32]),
    (levels, wants): (LevelPolicy, impl Fn(usize) -> bool),
) -> Result<StepOutput, EngineError> {
    computed(runner, rows, (levels, StepOutputKind::Logits), wants)
}

fn computed(
    runner: &mut dyn ModelRunner,
    (first, tokens): (usize, &[u32]),
    (levels, wanted): (LevelPolicy, StepOutputKind),
    wants: impl Fn(usize) -> bool,
) -> Result<StepOutput, EngineError> {
    let row = |(at, &token): (usize, &u32)| Row {
        token,
        position: (first + at) as u32,
        sequence: 0,
        wants_logits: wants(at),
        levels,
    };
    let pages = (0..pages_for(first + tokens.len()) as u32).map(PageId).collect();
    let rows = tokens.iter().enumerate().map(row).collect();
    let mut batch = Batch::new(rows, vec![SequenceRef::of_pages(pages)]);
    batch.own_states();
    batch.output = wanted;
    let output = runner.step_blocking(&batch, &CancelToken::new())?;
    assert!(output.failures.is_empty(), "{:?}", output.failures);
    Ok(output)
}

/// Returns the logits of each row, and the routing that they were computed with.
pub fn recorded(runner: &mut dyn ModelRunner, rows: (usize, &[u32])) -> (Vec<f32>, TraceStep) {
    let recorder = runner.routing_recorder().unwrap();
    recorder.start(1);
    let logits = step(runner, rows, |_| true).logits;
    (logits, recorder.stop().steps.remove(0))
}

/// Returns the logits of each row, computed with a given routing.
pub fn replayed<B: Backend>(
    runner: &mut Runner<B>,
    rows: (usize, &[u32]),
    routing: TraceStep,
) -> Vec<f32> {
    runner.replay(routing);
    step(runner, rows, |_| true).logits
}

/// Returns the logits of all positions, computed in chunks of `piece` rows.
pub fn all_logits(runner: &mut dyn ModelRunner, tokens: &[u32], piece: usize) -> Vec<f32> {
    let mut logits = Vec::new();
    for (index, tokens) in tokens.chunks(piece).enumerate() {
        logits.extend(step(runner, (index * piece, tokens), |_| true).logits);
    }
    logits
}

/// A greedily chosen token, and the margin of its logit over the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub token: u32,
    pub margin: f32,
}

/// Returns the argmax continuation.
pub fn greedy(runner: &mut dyn ModelRunner, prompt: &[u32], count: usize) -> Vec<Choice> {
    let (mut piece, mut first, mut choices) = (prompt.to_vec(), 0, Vec::new());
    while choices.len() < count {
        let last = piece.len() - 1;
        let output = step(runner, (first, &piece), |at| at == last);
        first += piece.len();
        let choice = best(&output.logits);
        choices.push(choice);
        piece = vec![choice.token];
    }
    choices
}

/// Returns the token with the largest logit.
pub fn best(logits: &[f32]) -> Choice {
    let mut best = [(0, f32::NEG_INFINITY); 2];
    for (token, &logit) in (0u32..).zip(logits) {
        if logit > best[0].1 {
            best = [(token, logit), best[0]];
        } else if logit > best[1].1 {
            best[1] = (token, logit);
        }
    }
    Choice { token: best[0].0, margin: best[0].1 - best[1].1 }
}
