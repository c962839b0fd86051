//! Measures the service of many sessions by one model:
//! `cargo run --release -p nestling-runtime --example service COMMAND`.
//!
//! - `synth STORE LAYERS`: writes a store of random weights in Qwen3-30B-A3B's shape, at two bits.
//! - `gaps STORE SECONDS [DECODERS] [PROMPT]`: gaps between tokens of decoders beside a prompt.
//! - `pool STORE PAGES SESSIONS PROMPT ANSWER`: tokens per second of many sessions that share `PAGES` pages.
//! - `prefix STORE TOKENS ROUNDS`: time to the first token of a new prompt, and of one that shares its
//!   prefix.
//! - `restart STORE TOKENS ROUNDS FOLDER`: the same for a prompt whose prefix an earlier engine stored on
//!   disk.
#![expect(clippy::print_stdout, reason = "the result is printed")]

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use nestling_core::{CancelToken, EngineError};
use nestling_formats::Level;
use nestling_plan::synthetic::{SyntheticOptions, SyntheticShape, write_synthetic_store};
use nestling_runtime::{
    Engine, EngineOptions, Event, GenerateOptions, Generation, Model, ModelOptions, PageReads,
    PageStore, PageStoreOptions, Residence,
};

type ServiceResult = Result<(), Box<dyn Error + Send + Sync>>;

fn main() -> ServiceResult {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let text = |index: usize| arguments.get(index).map(String::as_str);
    let number = |index: usize, other: usize| text(index).map_or(Ok(other), str::parse);
    let store = Path::new(text(1).ok_or("no store was named")?);
    match text(0) {
        Some("synth") => synthesize(store, number(2, 24)?),
        Some("gaps") => gaps(store, number(2, 60)?, number(3, 8)?, number(4, 8000)?),
        Some("pool") => {
            let [pages, sessions] = [number(2, 32)?, number(3, 64)?];
            pool(store, Pool { pages, sessions, prompt: number(4, 60)?, answer: number(5, 60)? })
        }
        Some("prefix") => prefix(store, number(2, 4000)?, number(3, 3)?),
        Some("restart") => {
            let folder = text(4).ok_or("no folder was named")?;
            restart(store, number(2, 4000)?, number(3, 3)?, Path::new(folder))
        }
        _ => Err("commands are synth, gaps, pool, prefix and restart".into()),
    }
}

fn synthesize(store: &Path, layers: usize) -> ServiceResult {
    let options = SyntheticOptions {
        shape: SyntheticShape::QWEN3_30B_A3B.with_layers(layers),
        top_level: Level::L2,
        router_skew: 0.5,
        seed: 1,
    };
    let report = write_synthetic_store(store, &options, &CancelToken::new(), &mut |_, _| {})?;
    println!("{report:?}");
    Ok(())
}

fn open(
    engine: &Engine,
    store: &Path,
    options: &ModelOptions,
) -> Result<Model, Box<dyn Error + Send + Sync>> {
    let model = Model::open(engine, store, options, &mut |_| {}, &CancelToken::new())?;
    Ok(model)
}

fn tokens(seed: usize, count: usize, vocab: usize) -> Vec<u32> {
    (0..count)
        .map(|i| ((i * 7919 + seed * 104_729 + i * i * 31) % (vocab - 300) + 200) as u32)
        .collect()
}

fn answer(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(max_tokens),
        ignore_end: true,
        token_events: true,
        events_max: 4096,
        ..GenerateOptions::greedy()
    }
}

/// Returns the arrival times of a generation's tokens, until its end or `stop`.
fn arrivals(generation: Generation, stop: Instant) -> Vec<Instant> {
    let mut arrivals = Vec::new();
    for event in generation {
        let now = Instant::now();
        match event {
            Ok(Event::Token(_)) => arrivals.push(now),
            Ok(_) => {}
            Err(_) => break,
        }
        if now > stop {
            break;
        }
    }
    arrivals
}

/// Measures prefix sharing: in each round, one session computes a new prefix and another one shares it.
fn prefix(store: &Path, shared: usize, rounds: usize) -> ServiceResult {
    let engine = Engine::new(EngineOptions::default())?;
    let options = ModelOptions {
        context_length: Some(shared + 128),
        kv_tokens: Some(2 * (shared + 128)),
        ..ModelOptions::default()
    };
    let model = open(&engine, store, &options)?;
    let vocab = model.limits().vocab_size;
    let first_token = |prompt: Vec<u32>| -> Result<(f64, usize), EngineError> {
        let mut session = model.session();
        let (_, finished) = session.generate(prompt, &answer(1))?.into_answer()?;
        Ok((finished.stats.time_to_first_token_seconds, finished.usage.cached_tokens))
    };
    for round in 0..rounds {
        let beginning = tokens(round, shared, vocab);
        let ask = |seed: usize| [&beginning[..], &tokens(1000 + seed, 32, vocab)].concat();
        let (alone, _) = first_token(ask(0))?;
        let (found, cached) = first_token(ask(1))?;
        let share = found / alone;
        println!(
            "{shared} tokens: {alone:.3} s alone, {found:.3} s with {cached} found: {share:.4}"
        );
    }
    Ok(())
}

/// Measures stored prefixes: in each round, one engine computes a new prefix and another one reads it.
fn restart(store: &Path, shared: usize, rounds: usize, folder: &Path) -> ServiceResult {
    let first_token = |prompt: Vec<u32>| -> Result<_, Box<dyn Error + Send + Sync>> {
        let page_store = PageStore::open(PageStoreOptions {
            directory: folder.to_owned(),
            bytes_max: 64 << 30,
            reads: PageReads::WhenFaster,
        })?;
        let engine = Engine::new(EngineOptions::default())?;
        let options = ModelOptions {
            context_length: Some(shared + 128),
            kv_tokens: Some(2 * (shared + 128)),
            page_store: Some(page_store),
            ..ModelOptions::default()
        };
        let model = open(&engine, store, &options)?;
        let mut session = model.session();
        let (_, finished) = session.generate(prompt, &answer(1))?.into_answer()?;
        drop((session, model));
        let left = Instant::now();
        let page_bytes = engine.status().page_store.bytes;
        drop(engine);
        let seconds = finished.stats.time_to_first_token_seconds;
        let flushed = left.elapsed().as_secs_f64();
        Ok((seconds, finished.usage.cached_tokens, page_bytes, flushed))
    };
    for round in 0..rounds {
        let beginning = tokens(round, shared, 32_000);
        let ask = |seed: usize| [&beginning[..], &tokens(1000 + seed, 32, 32_000)].concat();
        let (alone, _, _, flushed) = first_token(ask(0))?;
        let (found, cached, bytes, _) = first_token(ask(1))?;
        let share = found / alone;
        println!(
            "{shared} tokens: {alone:.3} s alone, {flushed:.3} s until all was written; \
             {found:.3} s with {cached} from {bytes} bytes on disk: {share:.4}"
        );
    }
    Ok(())
}

fn gaps(store: &Path, seconds: usize, decoders: usize, prompt: usize) -> ServiceResult {
    let engine = Engine::new(EngineOptions::default())?;
    let options = ModelOptions {
        context_length: Some(prompt + 1024),
        kv_tokens: Some(prompt + 1024 + decoders * 1024),
        residence: Residence::Owned,
        ..ModelOptions::default()
    };
    let model = open(&engine, store, &options)?;
    let vocab = model.limits().vocab_size;
    let alone = Duration::from_secs(12);
    let begun = Instant::now();
    let stop = begun + alone + Duration::from_secs(seconds as u64);
    let (found, first) = std::thread::scope(|scope| {
        let mut readers = Vec::new();
        for seed in 0..decoders {
            let generation = model.session().generate(tokens(seed, 16, vocab), &answer(900))?;
            readers.push(scope.spawn(move || arrivals(generation, stop)));
        }
        std::thread::sleep(alone);
        let started = Instant::now();
        let long = model.session().generate(tokens(99, prompt, vocab), &answer(1))?;
        let cancel = long.cancel_token();
        let first = scope.spawn(move || arrivals(long, stop));
        while Instant::now() < stop && !first.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
        }
        cancel.cancel();
        let ended = Instant::now();
        let first = first.join().map_err(|_| "a reader panicked")?;
        let mut found: [Vec<f64>; 2] = Default::default();
        for reader in readers {
            let times = reader.join().map_err(|_| "a reader panicked")?;
            for pair in times.windows(2) {
                let gap = pair[1].duration_since(pair[0]).as_secs_f64() * 1e3;
                if pair[0] > begun + alone / 3 && pair[1] < started {
                    found[0].push(gap);
                } else if pair[0] > started && pair[1] < ended {
                    found[1].push(gap);
                }
            }
        }
        let first = first.first().map(|at| at.duration_since(started).as_secs_f64());
        Ok::<_, Box<dyn Error + Send + Sync>>((found, first))
    })?;
    for (what, mut gaps) in ["alone", "beside"].into_iter().zip(found) {
        gaps.sort_by(f64::total_cmp);
        let at = |share: usize| gaps.get(gaps.len() * share / 100).copied().unwrap_or(f64::NAN);
        println!(
            "{what}: {} gaps, median {:.0} ms, p90 {:.0}, p99 {:.0}, worst {:.0}",
            gaps.len(),
            at(50),
            at(90),
            at(99),
            at(100).max(gaps.last().copied().unwrap_or(f64::NAN))
        );
    }
    let status = engine.status();
    println!(
        "first token of the prompt after {first:?} s; gap in force {:.3} s",
        status.gap_in_force
    );
    Ok(())
}

struct Pool {
    pages: usize,
    sessions: usize,
    prompt: usize,
    answer: usize,
}

fn pool(store: &Path, pool: Pool) -> ServiceResult {
    let engine = Engine::new(EngineOptions::default())?;
    let options = ModelOptions {
        context_length: Some(512),
        kv_tokens: Some(pool.pages * 64),
        residence: Residence::Owned,
        ..ModelOptions::default()
    };
    let model = open(&engine, store, &options)?;
    let vocab = model.limits().vocab_size;
    let started = Instant::now();
    let mut generations = Vec::new();
    for seed in 0..pool.sessions {
        generations.push(
            model.session().generate(tokens(seed, pool.prompt, vocab), &answer(pool.answer))?,
        );
    }
    let (mut produced, mut computed, mut firsts) = (0, 0, Vec::new());
    for generation in generations {
        let (_, finished) = generation.into_answer()?;
        produced += finished.usage.completion_tokens;
        computed += finished.stats.prompt_tokens;
        firsts.push(finished.stats.time_to_first_token_seconds);
    }
    let seconds = started.elapsed().as_secs_f64();
    firsts.sort_by(f64::total_cmp);
    println!(
        "{} pages: {:.1} tokens/s, {produced} tokens in {seconds:.2} s, {computed} prompt rows, first token median {:.2} s, last {:.2} s",
        pool.pages,
        produced as f64 / seconds,
        firsts[firsts.len() / 2],
        firsts[firsts.len() - 1]
    );
    Ok(())
}
