//! The bundled model on any backend, and what it computes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nestling_convert::convert::{ConvertOptions, convert};
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

/// A model, and a text for it.
pub struct Parts {
    pub source: Arc<dyn ExpertSource>,
    /// Tokens of the validation text, which no part of the model was made from.
    pub text: Vec<u32>,
}

/// What tests read: the source tree, or a folder laid out like it that NESTLING_TEST_ROOT names, where tests
/// run on a machine that they were not built on.
pub fn root() -> PathBuf {
    let elsewhere = std::env::var_os("NESTLING_TEST_ROOT").map(PathBuf::from);
    elsewhere.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
}

/// The tiny checkpoint of a family.
pub fn family(name: &str) -> Checkpoint {
    Checkpoint::open(root().join("engine/runtime/tests/data/families").join(name)).unwrap()
}

/// The bundled store.
pub fn store_path() -> PathBuf {
    root().join("models/nestling-storyteller.nest")
}

/// The bundled store, where the source tree has none.
pub fn lacks_store() -> Option<String> {
    let path = store_path();
    (!path.is_file()).then(|| format!("no {}", path.display()))
}

/// The bundled store at a level, all of it by default.
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

/// Tokens of a text: two pages.
pub const TOKENS: usize = 70;

/// The tiny checkpoint of a family, converted, and a text.
pub fn converted(name: &str, folder: &Path) -> Parts {
    let checkpoint = family(name);
    let vocabulary = checkpoint.config().vocab_size as u32;
    let path = folder.join("tiny.nest");
    let options = ConvertOptions::default();
    convert(&checkpoint, &path, &options, &CancelToken::new(), &mut |_| {}).unwrap();
    let source = StoreSource::owned(Arc::new(Store::open(path).unwrap()), None).unwrap();
    let text = (0..TOKENS as u32).map(|at| at * 7919 % vocabulary).collect();
    Parts { source: Arc::new(source), text }
}

/// Experts streamed within a budget, read when they are wanted.
pub fn streaming(budget_bytes: u64, experts: HostExperts) -> StreamOptions {
    let host = HostOptions { experts, threads: 2 };
    StreamOptions { budget_bytes, reads: ReadOptions::default(), prefetch: Prefetch::Off, host }
}

impl Parts {
    /// The model on a backend, its experts streamed within a budget where there is one.
    pub fn runner<B: Backend>(
        &self,
        backend: B,
        activations: ActivationMode,
        expert_budget: Option<u64>,
    ) -> Runner<B> {
        self.try_runner(backend, activations, expert_budget).unwrap()
    }

    /// The same where it may be refused.
    pub fn try_runner<B: Backend>(
        &self,
        backend: B,
        activations: ActivationMode,
        expert_budget: Option<u64>,
    ) -> Result<Runner<B>, EngineError> {
        let streaming = expert_budget.map(|budget| streaming(budget, HostExperts::Never));
        self.try_streamed(backend, activations, streaming)
    }

    /// The same with all that is said of streaming.
    pub fn try_streamed<B: Backend>(
        &self,
        backend: B,
        activations: ActivationMode,
        streaming: Option<StreamOptions>,
    ) -> Result<Runner<B>, EngineError> {
        let options = RunnerOptions {
            rows_max: ROWS_MAX,
            kv_pages: Some(PAGES),
            kv_dtype: KvDtype::F16,
            streaming,
            activations,
            load_threads: 2,
            ..RunnerOptions::default()
        };
        let cancel = CancelToken::new();
        let source = Arc::clone(&self.source);
        Runner::load(backend, source, &options, &cancel, &mut |_, _| {})
    }

    pub fn on_cpu(&self, activations: ActivationMode) -> Runner<Cpu> {
        self.runner(Cpu::new(2), activations, None)
    }
}

const PAGES: usize = 8;

/// Most rows of a step.
pub const ROWS_MAX: usize = 64;

/// Computes the rows that follow `first` positions of the only sequence.
pub fn step(
    runner: &mut dyn ModelRunner,
    rows: (usize, &[u32]),
    wants: impl Fn(usize) -> bool,
) -> StepOutput {
    try_step(runner, rows, wants).unwrap()
}

/// The same on a device that may fail.
pub fn try_step(
    runner: &mut dyn ModelRunner,
    rows: (usize, &[u32]),
    wants: impl Fn(usize) -> bool,
) -> Result<StepOutput, EngineError> {
    step_for(runner, rows, (StepOutputKind::Logits, wants))
}

/// The same for other things than logits.
pub fn step_for(
    runner: &mut dyn ModelRunner,
    rows: (usize, &[u32]),
    (wanted, wants): (StepOutputKind, impl Fn(usize) -> bool),
) -> Result<StepOutput, EngineError> {
    let levels = LevelPolicy::Fixed(runner.limits().level_max.unwrap_or(Level::L8));
    computed(runner, rows, (levels, wanted), wants)
}

/// The same at other levels than the highest.
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

/// Logits of every position of some rows, and the routing that they were computed with.
pub fn recorded(runner: &mut dyn ModelRunner, rows: (usize, &[u32])) -> (Vec<f32>, TraceStep) {
    let recorder = runner.routing_recorder().unwrap();
    recorder.start(1);
    let logits = step(runner, rows, |_| true).logits;
    (logits, recorder.stop().steps.remove(0))
}

/// Logits of every position of some rows, computed with this routing.
pub fn replayed<B: Backend>(
    runner: &mut Runner<B>,
    rows: (usize, &[u32]),
    routing: TraceStep,
) -> Vec<f32> {
    runner.replay(routing);
    step(runner, rows, |_| true).logits
}

/// Logits of every position, computed in pieces of so many rows.
pub fn all_logits(runner: &mut dyn ModelRunner, tokens: &[u32], piece: usize) -> Vec<f32> {
    let mut logits = Vec::new();
    for (index, tokens) in tokens.chunks(piece).enumerate() {
        logits.extend(step(runner, (index * piece, tokens), |_| true).logits);
    }
    logits
}

/// One greedily chosen token, and how far its logit is above the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub token: u32,
    pub margin: f32,
}

/// The argmax continuation.
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

/// The largest of some logits.
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
