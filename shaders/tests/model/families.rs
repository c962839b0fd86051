//! A tiny checkpoint of every family, on the device against the CPU.
//!
//! Weights are floats, so that devices differ by the rounding of sums alone, and the routing is the
//! CPU's, so that no near tie of a router is in between.

use std::path::Path;
use std::sync::Arc;

use nestling_engine::EngineError;
use nestling_engine::backend::Backend;
use nestling_engine::cancel::CancelToken;
use nestling_engine::cpu::Cpu;
use nestling_engine::expert::{CheckpointSource, ExpertSource};
use nestling_engine::model::{Runner, RunnerOptions};
use nestling_engine::runner::ModelRunner;
use nestling_formats::Checkpoint;

use crate::common::{device, recorded, replayed, step};
use crate::harness::family_tokens as tokens;

/// Folders of `engine/tests/data/families`, and what of a family the device refuses.
const FAMILIES: &[(&str, Option<&str>)] = &[
    ("deepseek-v2", None),
    ("deepseek-v2-lite", None),
    ("deepseek-v3", None),
    ("gemma4", None),
    ("glm4-moe-lite", None),
    ("gpt-oss", None),
    ("gpt-oss-bf16", None),
    ("granite-moe", None),
    ("granite-moe-bias", None),
    ("mixtral", None),
    ("olmoe", None),
    ("qwen2-moe", None),
    ("qwen3-5-moe", None),
    ("qwen3-next", None),
    ("qwen3-next-bias", None),
];

/// Rows of a second computation: it reads pages and states that the first pieces left.
const PIECE: usize = 23;

/// Most that a logit may differ, as a part of the largest: each of at most four layers adds some ten
/// sums of at most 128 products, every one off by at most 128 / 16 + 6 roundings of 2^-24, and
/// norms and gated DeltaNet's states enlarge that some ten times.
const TOLERANCE: f32 = 4.0 * 10.0 * 14.0 * 10.0 / (1 << 24) as f32;

fn load<B: Backend>(backend: B, source: &Arc<dyn ExpertSource>) -> Result<Runner<B>, EngineError> {
    let options =
        RunnerOptions { rows_max: tokens(), kv_pages: Some(4), ..RunnerOptions::default() };
    Runner::load(backend, Arc::clone(source), &options, &CancelToken::new(), &mut |_, _| {})
}

#[test]
fn every_family_has_the_logits_of_the_cpu() {
    let Some(device) = device() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/data/families");
    for (name, refused) in FAMILIES {
        let checkpoint = Checkpoint::open(folder.join(name)).unwrap();
        let source: Arc<dyn ExpertSource> = Arc::new(CheckpointSource::new(checkpoint));
        let loaded = load(device.again().unwrap(), &source);
        let mut found = match (loaded, refused) {
            (Ok(runner), None) => runner,
            (Err(error), Some(what)) => {
                eprintln!("{name} is refused: {error}");
                assert!(error.to_string().contains(what), "{name}: {error}");
                continue;
            }
            (Ok(_), Some(what)) => panic!("{name} is not refused for {what}"),
            (Err(error), None) => panic!("{name}: {error}"),
        };
        let vocabulary = source.config().vocab_size as u32;
        let tokens: Vec<u32> = (0..tokens() as u32).map(|at| at * 7919 % vocabulary).collect();
        let mut cpu = load(Cpu::new(2), &source).unwrap();
        let (expected, routing) = recorded(&mut cpu, (0, &tokens));
        let largest = expected.iter().fold(0.0, |most: f32, logit| most.max(logit.abs()));
        let whole = replayed(&mut found, (0, &tokens), routing);
        let off =
            whole.iter().zip(&expected).fold(0.0, |most: f32, (a, b)| most.max((a - b).abs()));
        eprintln!("{name}: off by {off:e}, logits up to {largest}");
        assert!(off <= TOLERANCE * largest, "{name}: {off} of {largest}");
        // The same by its own routing, in pieces, is what it says of the whole.
        let [own, pieces] =
            [tokens.len(), PIECE].map(|piece| in_pieces(&mut found, &tokens, piece));
        assert!(own == pieces, "{name}: in pieces of {PIECE}");
    }
}

/// Logits after the last token of each piece of [`PIECE`], computed so many at a time.
fn in_pieces(runner: &mut dyn ModelRunner, tokens: &[u32], piece: usize) -> Vec<f32> {
    let mut logits = Vec::new();
    for (index, part) in tokens.chunks(piece).enumerate() {
        let first = index * piece;
        let wants = |at: usize| (first + at) % PIECE == PIECE - 1;
        logits.extend(step(runner, (first, part), wants).logits);
    }
    logits
}
