//! Computes logits of the unquantized path for many checkpoints, which `scripts/judge_families.py` compares
//! with transformers.
//!
//! Each line of the standard input is a job, `{"directory": …, "prompts": [[token, …], …], "out": …}`,
//! answered by one line. On success the answer is `{"positions": N, "vocab_size": V}`, and the file `out`
//! contains `[N, V]` logits as little-endian f32. Each prompt is computed three times: whole, in chunks of 37
//! tokens, and token by token. Otherwise the answer is `{"refused": …, "kind": …}`, with the error message
//! and the variant of `ImportError`.
#![expect(clippy::print_stdout, reason = "the answers are printed")]

use std::error::Error;
use std::fs;
use std::io::{BufRead, Write};
use std::sync::Arc;

use nestling_core::CancelToken;
use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef};
use nestling_core::kv_cache::{PageAllocator, PageTable};
use nestling_core::runner::ModelRunner;
use nestling_cpu::Cpu;
use nestling_experts::expert::{CheckpointSource, ExpertSource};
use nestling_formats::Level;
use nestling_import::{Checkpoint, ImportError};
use nestling_runtime::model::{Runner, RunnerOptions};
use serde_json::{Value, json};

type Failure = Box<dyn Error>;

/// Numbers of tokens per step with which each prompt is computed.
const PIECES: [usize; 3] = [ROWS_MAX, 37, 1];

/// Maximum prompt length in tokens.
const ROWS_MAX: usize = 512;

fn main() -> Result<(), Failure> {
    for line in std::io::stdin().lock().lines() {
        let job: Value = serde_json::from_str(&line?)?;
        println!("{}", answer(&job)?);
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn answer(job: &Value) -> Result<Value, Failure> {
    let text = |key: &str| job[key].as_str().ok_or_else(|| format!("`{key}` is missing"));
    let checkpoint = match Checkpoint::open(text("directory")?) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return Ok(refusal(&error)),
    };
    let vocab_size = checkpoint.config().vocab_size;
    let source: Arc<dyn ExpertSource> = Arc::new(CheckpointSource::new(checkpoint));
    let options = RunnerOptions {
        rows_max: ROWS_MAX,
        context_max: Some(ROWS_MAX),
        load_threads: 1,
        ..RunnerOptions::default()
    };
    let cancel = CancelToken::new();
    let loaded = Runner::load(Cpu::new(1), source, &options, &cancel, &mut |_, _| {});
    let mut runner = match loaded {
        Ok(runner) => runner,
        Err(error) => return Ok(json!({ "refused": error.to_string(), "kind": "Runner" })),
    };
    let mut bytes = Vec::new();
    for prompt in job["prompts"].as_array().ok_or("`prompts` is missing")? {
        let tokens: Vec<u32> = serde_json::from_value(prompt.clone())?;
        for rows in PIECES {
            let logits = logits(&mut runner, &tokens, rows)?;
            bytes.extend(logits.into_iter().flat_map(f32::to_le_bytes));
        }
    }
    let positions = bytes.len() / 4 / vocab_size;
    fs::write(text("out")?, bytes)?;
    Ok(json!({ "positions": positions, "vocab_size": vocab_size }))
}

fn refusal(error: &ImportError) -> Value {
    let variant = format!("{error:?}");
    let kind = variant.split(|c: char| !c.is_alphanumeric()).next();
    json!({ "refused": error.to_string(), "kind": kind })
}

/// Returns the logits of all tokens, `[tokens, vocab_size]`, computed `rows` tokens at a time.
fn logits(runner: &mut dyn ModelRunner, tokens: &[u32], rows: usize) -> Result<Vec<f32>, Failure> {
    let mut allocator = PageAllocator::new(u32::try_from(runner.limits().pages)?);
    let mut pages = PageTable::default();
    let mut logits = Vec::new();
    for piece in tokens.chunks(rows) {
        let first = u32::try_from(pages.length())?;
        pages.extend(piece.len(), &mut allocator)?;
        let mut batch = Batch::default();
        batch.sequences.push(SequenceRef::of_pages(pages.pages().to_vec()));
        batch.rows.extend((first..).zip(piece).map(|(position, &token)| Row {
            token,
            position,
            sequence: 0,
            wants_logits: true,
            levels: LevelPolicy::Fixed(Level::L8),
        }));
        batch.own_states();
        let output = runner.step_blocking(&batch, &CancelToken::new())?;
        if let Some(failure) = output.failures.first() {
            return Err(format!("{failure:?}").into());
        }
        logits.extend(output.logits);
    }
    Ok(logits)
}
