//! Models on all CPU encoders, token sequences, and golden files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nestling_core::backend::Backend;
use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef};
use nestling_core::cancel::CancelToken;
use nestling_core::kv_cache::{PageAllocator, PageTable};
use nestling_core::runner::{ModelRunner, StepOutput};
use nestling_cpu::Cpu;
use nestling_cpu::kernels::Kernels;
use nestling_cpu::reference::Reference;
use nestling_cpu::threads::ThreadPool;
use nestling_experts::expert::{CheckpointSource, ExpertSource};
use nestling_formats::{DType, Level};
use nestling_import::checkpoint::Checkpoint;
use nestling_runtime::model::{Runner, RunnerOptions};

use crate::models::common::root;

/// Maximum difference of a logit, as stated in README.md. `transformers` and llama.cpp add up the same
/// float32 products in other orders. The goldens are fixed and bits do not depend on the machine, so the
/// differences do not vary. The largest to `transformers` are 4.7e-5 (gpt-oss) and 1.7e-5 (all others).
pub const LOGIT_TOLERANCE: f32 = 5e-5;

/// Returns the path of a file or folder in the test data of models.
pub fn data(name: &str) -> PathBuf {
    root().join("engine/runtime/tests/data").join(name)
}

pub fn checkpoint(directory: &Path) -> Arc<dyn ExpertSource> {
    Arc::new(CheckpointSource::new(Checkpoint::open(directory).unwrap()))
}

pub fn runner<B: Backend>(
    backend: B,
    source: &Arc<dyn ExpertSource>,
    options: &RunnerOptions,
) -> Runner<B> {
    let cancel = CancelToken::new();
    Runner::load(backend, Arc::clone(source), options, &cancel, &mut |_, _| {}).unwrap()
}

/// Loads the model on each CPU encoder that this machine supports.
pub fn runners(
    source: &Arc<dyn ExpertSource>,
    options: &RunnerOptions,
) -> Vec<(String, Box<dyn ModelRunner>)> {
    let reference: Box<dyn ModelRunner> = Box::new(runner(Reference, source, options));
    let mut all = vec![("reference".into(), reference)];
    for kernels in Kernels::available() {
        for threads in [1, 2] {
            let cpu = Cpu::with(Arc::new(ThreadPool::new(threads)), kernels);
            let name = format!("{} with {threads} threads", kernels.name());
            all.push((name, Box::new(runner(cpu, source, options))));
        }
    }
    all
}

/// Returns deterministic tokens of a vocabulary.
pub fn some_tokens(count: usize, vocab_size: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    (0..count).map(|_| (next() % vocab_size) as u32).collect()
}

/// One sequence of tokens on a runner.
pub struct Sequence {
    pub pages: PageTable,
    pub levels: LevelPolicy,
}

impl Sequence {
    pub fn new(level: Level) -> Self {
        Self { pages: PageTable::default(), levels: LevelPolicy::Fixed(level) }
    }

    /// Adds tokens to a batch.
    pub fn push(
        &mut self,
        tokens: &[u32],
        wants: impl Fn(usize) -> bool,
        batch: &mut Batch,
        allocator: &mut PageAllocator,
    ) {
        let first = self.pages.length();
        assert_eq!(self.pages.extend(tokens.len(), allocator).unwrap(), None);
        let sequence = batch.sequences.len() as u32;
        batch.sequences.push(SequenceRef::of_pages(self.pages.pages().to_vec()));
        for (at, &token) in tokens.iter().enumerate() {
            let position = (first + at) as u32;
            let (wants_logits, levels) = (wants(at), self.levels);
            batch.rows.push(Row { token, position, sequence, wants_logits, levels });
        }
    }
}

/// Returns the logits of all positions of `tokens`, `[T, vocab_size]`, computed in chunks of `chunk` rows.
pub fn all_logits(
    runner: &mut dyn ModelRunner,
    tokens: &[u32],
    level: Level,
    chunk: usize,
) -> Vec<f32> {
    let mut allocator = PageAllocator::new(runner.limits().pages as u32);
    let mut sequence = Sequence::new(level);
    let mut logits = Vec::new();
    for piece in tokens.chunks(chunk) {
        let mut batch = Batch::default();
        sequence.push(piece, |_| true, &mut batch, &mut allocator);
        logits.extend(step(runner, &batch).logits);
    }
    logits
}

pub fn step(runner: &mut dyn ModelRunner, batch: &Batch) -> StepOutput {
    let mut batch = batch.clone();
    batch.own_states();
    let output = runner.step_blocking(&batch, &CancelToken::new()).unwrap();
    assert!(output.failures.is_empty(), "{:?}", output.failures);
    output
}

/// Returns the argmax continuation.
pub fn greedy(
    runner: &mut dyn ModelRunner,
    prompt: &[u32],
    level: Level,
    count: usize,
) -> Vec<u32> {
    let mut allocator = PageAllocator::new(runner.limits().pages as u32);
    let mut sequence = Sequence::new(level);
    let (mut piece, mut out) = (prompt.to_vec(), Vec::new());
    while out.len() < count {
        let mut batch = Batch::default();
        let last = piece.len() - 1;
        sequence.push(&piece, |at| at == last, &mut batch, &mut allocator);
        let token = argmax(&step(runner, &batch).logits);
        out.push(token);
        piece = vec![token];
    }
    out
}

pub fn argmax(logits: &[f32]) -> u32 {
    let best = (0u32..).zip(logits).fold((0, f32::NEG_INFINITY), |best, (id, &logit)| {
        if logit > best.1 { (id, logit) } else { best }
    });
    best.0
}

/// Reads the F32 tensors of a golden file.
pub fn golden_tensors(path: &Path) -> BTreeMap<String, Vec<f32>> {
    let bytes = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let data = &bytes[8 + length..];
    let mut out = BTreeMap::new();
    for (name, info) in header.as_object().unwrap() {
        if name == "__metadata__" {
            continue;
        }
        assert_eq!(info["dtype"], "F32", "{name}");
        let at = |i: usize| info["data_offsets"][i].as_u64().unwrap() as usize;
        let mut values = vec![0.0; (at(1) - at(0)) / 4];
        DType::F32.decode(&data[at(0)..at(1)], &mut values);
        out.insert(name.clone(), values);
    }
    out
}

pub fn golden_json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

pub fn token_list(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect()
}
