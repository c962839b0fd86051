//! Models of scaled integers: GGUF files converted to stores with exact blocks, and used in place.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nestling_convert::convert::{ConvertOptions, SourceBlocks, convert};
use nestling_convert::in_place::open_in_place;
use nestling_core::backend::Backend;
use nestling_core::batch::LevelPolicy;
use nestling_core::cancel::CancelToken;
use nestling_core::runner::ModelRunner;
use nestling_core::weights::ActivationMode;
use nestling_cpu::Cpu;
use nestling_experts::expert::{ExpertSource, HostExperts, StoreSource};
use nestling_formats::Level;
use nestling_formats::store::{Digits, Store};
use nestling_import::Checkpoint;
use nestling_runtime::model::{Runner, RunnerOptions};

use super::common::{Parts, TOKENS, recorded, replayed, root, streaming, try_step_at};
use super::families::TOLERANCE;
use super::streamed::expert_bytes;
use crate::{ModelsDevice, Test, note, tests};

/// Files with several block types: K-quants mixed by layer, MXFP4, latent attention, tied and biased weights.
const FILES: [&str; 4] = ["k-quants", "gpt-oss", "deepseek-v2-lite", "qwen3-moe"];

fn file(name: &str) -> PathBuf {
    root().join("engine/runtime/tests/data/gguf").join(format!("{name}.gguf"))
}

fn parts(store: Store) -> Parts {
    let source = StoreSource::owned(Arc::new(store), None).unwrap();
    let vocabulary = source.config().vocab_size as u32;
    let text = (0..TOKENS as u32).map(|at| at * 7919 % vocabulary).collect();
    Parts { source: Arc::new(source), text }
}

fn in_place(name: &str) -> Parts {
    parts(open_in_place(Arc::new(Checkpoint::open(file(name)).unwrap()), Digits::Apart).unwrap())
}

/// Converts a file to a store with exact blocks and separate planes.
fn exact(name: &str, folder: &Path) -> Parts {
    let path = folder.join("exact.nest");
    let mut options = ConvertOptions::default();
    options.source_blocks = SourceBlocks::Exact;
    let checkpoint = Checkpoint::open(file(name)).unwrap();
    convert(&checkpoint, &path, &options, &CancelToken::new(), &mut |_| {}).unwrap();
    parts(Store::open(path).unwrap())
}

/// Loads a model, with streamed experts if there is a budget.
fn load<B: Backend>(
    backend: B,
    parts: &Parts,
    activations: ActivationMode,
    budget: Option<u64>,
) -> Runner<B> {
    let streaming = budget.map(|budget| streaming(budget, HostExperts::Never));
    let options = RunnerOptions {
        rows_max: TOKENS,
        kv_pages: Some(4),
        activations,
        streaming,
        ..RunnerOptions::default()
    };
    let (source, cancel) = (Arc::clone(&parts.source), CancelToken::new());
    Runner::load(backend, source, &options, &cancel, &mut |_, _| {}).unwrap()
}

/// A device with float activations only differs by the rounding of sums.
fn weights_of_files_are_those_of_the_cpu<D: ModelsDevice>() {
    let device = D::device();
    let count = D::family_tokens();
    for name in FILES {
        let parts = in_place(name);
        let tokens = &parts.text[..count];
        let float = ActivationMode::Float;
        let mut cpu = load(Cpu::new(2), &parts, float, None);
        let (expected, routing) = recorded(&mut cpu, (0, tokens));
        let mut runner = load(D::again(&device), &parts, float, None);
        let found = replayed(&mut runner, (0, tokens), routing);
        let largest = expected.iter().fold(0.0, |most: f32, logit| most.max(logit.abs()));
        let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        note!("{name}: off by {off:e}, logits up to {largest}");
        assert!(off <= TOLERANCE * largest, "{name}: {off} of {largest}");
    }
}

/// Returns the bits of the logits of a prompt's last token and of later tokens, at a level.
fn logits(runner: &mut dyn ModelRunner, tokens: &[u32], level: Level) -> Vec<u32> {
    const PROMPT: usize = 9;
    let levels = LevelPolicy::Fixed(level);
    let mut out = Vec::new();
    let mut compute = |first: usize, tokens: &[u32]| {
        let last = tokens.len() - 1;
        let step = try_step_at(runner, (first, tokens), (levels, |at| at == last)).unwrap();
        out.extend(step.logits.iter().map(|logit| logit.to_bits()));
    };
    compute(0, &tokens[..PROMPT]);
    (PROMPT..tokens.len()).for_each(|at| compute(at, &tokens[at..=at]));
    out
}

/// Experts in slots of one size give the same bits as resident experts, for any block types in their layers.
/// A file in place gives the same bits as its store.
fn streamed_files_have_the_bits_of_resident_ones<D: ModelsDevice>() {
    let device = D::device();
    for name in FILES {
        let folder = tempfile::tempdir().unwrap();
        let stored = exact(name, folder.path());
        let lies = in_place(name);
        let tokens = &stored.text[..12];
        let int8 = ActivationMode::Int8;
        let top = stored.source.level_max().unwrap();
        let mut resident = load(D::again(&device), &stored, int8, None);
        let expected = logits(&mut resident, tokens, top);
        for (parts, what) in [(&stored, "stored"), (&lies, "in place")] {
            let (all, least) = expert_bytes(parts);
            for budget in [None, Some(least), Some(all)] {
                let mut runner = load(D::again(&device), parts, int8, budget);
                let found = logits(&mut runner, tokens, top);
                assert!(found == expected, "{name} {what}, {budget:?} of {all}");
            }
        }
        // Lower levels of a store, whose planes are read one at a time.
        let mut streamed = load(D::again(&device), &stored, int8, Some(expert_bytes(&stored).1));
        for level in Level::ALL.into_iter().filter(|level| *level < top) {
            let expected = logits(&mut resident, tokens, level);
            assert!(logits(&mut streamed, tokens, level) == expected, "{name} level {level}");
        }
    }
}

pub fn suite<D: ModelsDevice>() -> Vec<Test> {
    tests![
        weights_of_files_are_those_of_the_cpu::<D>,
        streamed_files_have_the_bits_of_resident_ones::<D>,
    ]
}
