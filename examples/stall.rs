//! Measures stalls by long prompts: `cargo run --release --example stall [MODEL] [SECONDS] [THREADS]`.
//!
//! The program measures the gaps between tokens with and without another thread that starts generations with
//! prompts of 5 MB, as text and as a message. All pages are taken throughout, so that each output needs pages
//! of sessions at rest.
#![expect(clippy::print_stdout, reason = "the result is printed")]

mod bundled;

use std::collections::VecDeque;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nestling::{
    Engine, EngineError, EngineOptions, Event, GenerateOptions, Message, Model, ModelOptions,
};

const PROMPT_BYTES: usize = 5_000_000;
/// More sessions than there are pages for.
const SESSIONS_AT_REST: usize = 8;
/// The two cases alternate, so that other load on the machine affects both.
const ROUNDS: u32 = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(2);
    let seconds = arguments.next().map_or(Ok(20.0), |text| text.parse::<f64>())?;
    let threads = arguments.next().map(|text| text.parse()).transpose()?;
    let engine = Engine::new(EngineOptions { threads, ..EngineOptions::default() })?;
    let (context_length, kv_tokens) = (Some(512), Some(512));
    let options = ModelOptions { context_length, kv_tokens, ..ModelOptions::default() };
    let model =
        Model::open(&engine, bundled::model_path(), &options, &mut |_| {}, &Default::default())?;
    let round = Duration::from_secs_f64(seconds / f64::from(2 * ROUNDS));
    let (mut alone, mut beside, mut prompts) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        alone.extend(gaps(&model, round)?);
        let stop = AtomicBool::new(false);
        let started = AtomicUsize::new(0);
        let found = std::thread::scope(|scope| {
            let other = scope.spawn(|| long_prompts(&model, &stop, &started));
            let found = gaps(&model, round);
            stop.store(true, Ordering::Relaxed);
            other.join().map_err(|_| "the thread with long prompts panicked")??;
            Ok::<_, Box<dyn Error>>(found?)
        })?;
        beside.extend(found);
        prompts += started.into_inner();
    }
    let (alone, beside) = (Gaps::of(alone), Gaps::of(beside));
    println!("alone:  {alone:?}");
    println!("beside: {beside:?} ({prompts} prompts of {PROMPT_BYTES} bytes)");
    println!(
        "ratio:  worst {:.2}, p99 {:.2}, median {:.2}",
        beside.worst / alone.worst,
        beside.p99 / alone.p99,
        beside.median / alone.median
    );
    Ok(())
}

/// Gaps between two tokens, in milliseconds.
#[derive(Debug)]
struct Gaps {
    worst: f64,
    p99: f64,
    median: f64,
}

impl Gaps {
    fn of(mut gaps: Vec<f64>) -> Self {
        gaps.sort_by(f64::total_cmp);
        let at = |share: usize| gaps.get(gaps.len() * share / 100).copied().unwrap_or(f64::NAN);
        Self { worst: gaps.last().copied().unwrap_or(f64::NAN), p99: at(99), median: at(50) }
    }
}

/// Measures the gaps seen by a reader of tokens for the duration `time`.
fn gaps(model: &Model, time: Duration) -> Result<Vec<f64>, EngineError> {
    let (mut gaps, begun) = (Vec::new(), Instant::now());
    let options = GenerateOptions {
        // The second page is needed in the middle of the output.
        max_tokens: Some(100),
        ignore_end: true,
        token_events: true,
        ..GenerateOptions::greedy()
    };
    let mut at_rest = VecDeque::new();
    while begun.elapsed() < time {
        let (mut session, mut last) = (model.session(), None);
        for event in session.generate("Once upon a time", &options)? {
            if !matches!(event?, Event::Token(_)) {
                continue;
            }
            let now = Instant::now();
            let gap = last.replace(now).map(|last| now.duration_since(last));
            gaps.extend(gap.map(|gap| gap.as_secs_f64() * 1e3));
            if begun.elapsed() >= time {
                break;
            }
        }
        at_rest.push_front(session);
        at_rest.truncate(SESSIONS_AT_REST);
    }
    Ok(gaps)
}

/// Starts generations with prompts longer than any context, until `stop` is set.
fn long_prompts(
    model: &Model,
    stop: &AtomicBool,
    started: &AtomicUsize,
) -> Result<(), EngineError> {
    let text = "The ship left the harbour in the night, and nobody saw it again. ";
    let text = text.repeat(PROMPT_BYTES / text.len());
    let message = vec![Message::user(text.as_str())];
    let mut session = model.session();
    while !stop.load(Ordering::Relaxed) {
        // A short history, so that the session holds pages that others need.
        let few = GenerateOptions { max_tokens: Some(1), ..GenerateOptions::greedy() };
        session.truncate(0)?;
        session
            .generate("It was a dark night when the captain came on deck.", &few)?
            .into_text()?;
        refused(session.generate(text.as_str(), &few))?;
        refused(session.generate(message.as_slice(), &few))?;
        started.fetch_add(2, Ordering::Relaxed);
    }
    Ok(())
}

fn refused<T>(started: Result<T, EngineError>) -> Result<(), EngineError> {
    match started {
        Err(EngineError::ContextFull { .. }) | Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}
