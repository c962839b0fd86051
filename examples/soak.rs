//! Long-running test of a model under load: `cargo run --release --example soak [MINUTES] [STORE]`.
//!
//! Neither the experts nor the pages of all generations fit in memory. Eight threads generate with random priorities and
//! deadlines, and cancel some generations. Meanwhile the budget of experts grows and shrinks, and files of the page store are
//! damaged, cut and removed. Each completed output is compared with that of a resident model without load. Once a minute
//! the load pauses: then every page must be free, and the memory of the process is printed.
#![expect(clippy::print_stdout, reason = "the result is printed")]

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use nestling::{
    CancelToken, Engine, EngineError, EngineOptions, FinishReason, GenerateOptions, Input, Model,
    ModelOptions, PageReads, PageStore, PageStoreOptions, Residence,
};

const PROMPTS: [&str; 4] = [
    "Once upon a time there was a",
    "The little girl went to the park and",
    "Tom had a red ball. One day",
    "It was raining, so the dog",
];

/// Repetitions of a prompt's sentence: outputs begin after more than a page, so that pages are stored.
const REPETITIONS: [usize; 3] = [1, 9, 20];

const THREADS: u64 = 8;

/// Tokens of an output.
const OUTPUT: usize = 60;

type Answer = (String, FinishReason);
type Failure = Box<dyn Error + Send + Sync>;

fn prompt(which: usize) -> String {
    let times = REPETITIONS[which / PROMPTS.len() % REPETITIONS.len()];
    [PROMPTS[which % PROMPTS.len()]].repeat(times).join(" ")
}

fn options() -> GenerateOptions {
    GenerateOptions { max_tokens: Some(OUTPUT), ..GenerateOptions::greedy() }
}

fn answer(model: &Model, which: usize, options: &GenerateOptions) -> Result<Answer, EngineError> {
    let generation = model.session().generate(Input::Text(prompt(which)), options)?;
    let (text, finished) = generation.into_answer()?;
    Ok((text, finished.reason))
}

/// Returns a random number below `end`.
fn below(state: &mut u64, end: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % end
}

/// Returns the resident memory of this process in KiB, if the system reports it.
fn resident_kib() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// State that the threads share.
struct Load {
    engine: Engine,
    model: Model,
    expected: Vec<Answer>, // [prompts]
    ends: Instant,
    /// Held by each generation; the auditor waits until none is running.
    running: RwLock<()>,
    answers: AtomicU64,
    cancelled: AtomicU64,
}

impl Load {
    /// Generates until the end.
    fn generate(&self, seed: u64) -> Result<(), Failure> {
        let mut state = seed;
        while Instant::now() < self.ends {
            let _running = self.running.read().unwrap_or_else(PoisonError::into_inner);
            let which = below(&mut state, self.expected.len());
            let deadline = [None, Some(Duration::from_millis(50))][below(&mut state, 2)];
            let priority = below(&mut state, 5) as i8 - 2;
            let options = GenerateOptions { priority, deadline, ..options() };
            if below(&mut state, 5) == 0 {
                let input = Input::Text(prompt(which));
                let generation = self.model.session().generate(input, &options)?;
                thread::sleep(Duration::from_millis(below(&mut state, 40) as u64));
                drop(generation);
                self.cancelled.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let found = answer(&self.model, which, &options)?;
            if found != self.expected[which] {
                return Err(
                    format!("prompt {which}: {found:?}, not {:?}", self.expected[which]).into()
                );
            }
            self.answers.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Checks that at rest every page is free.
    fn audit(&self) -> Result<(), Failure> {
        let _none_running = self.running.write().unwrap_or_else(PoisonError::into_inner);
        let patience = Instant::now() + Duration::from_secs(10);
        loop {
            // A dropped generation ends at its next step.
            let pages = self.engine.status().pages;
            if pages.free == pages.total && pages.running + pages.waiting + pages.promised == 0 {
                return Ok(());
            }
            if Instant::now() > patience {
                return Err(format!("pages are held by nobody: {pages:?}").into());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Damages, cuts or removes a random file of the page store. Files come and go, so errors are no failure.
fn spoil(folder: &Path, state: &mut u64) -> Option<()> {
    let files: Vec<PathBuf> =
        fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    let pages: Vec<_> =
        files.iter().filter(|path| path.metadata().is_ok_and(|file| file.len() > 4096)).collect();
    let path = pages.get(below(state, pages.len().max(1)))?;
    let length = path.metadata().ok()?.len();
    let at = below(state, length as usize) as u64;
    match below(state, 3) {
        0 => fs::remove_file(path).ok(),
        1 => OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(at)).ok(),
        _ => {
            let mut file: File = OpenOptions::new().write(true).open(path).ok()?;
            file.seek(SeekFrom::Start(at)).ok()?;
            file.write_all(&[below(state, 256) as u8]).ok()
        }
    }
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let minutes: u64 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let bundled = concat!(env!("CARGO_MANIFEST_DIR"), "/models/nestling-storyteller.nest");
    let path: PathBuf = arguments.next().map_or_else(|| bundled.into(), PathBuf::from);
    let open = |memory_budget, options: &ModelOptions| {
        let engine = Engine::new(EngineOptions { memory_budget, ..EngineOptions::default() })?;
        let model = Model::open(&engine, &path, options, &mut |_| {}, &CancelToken::new())?;
        Ok::<_, EngineError>((engine, model))
    };
    let (_, resident) =
        open(None, &ModelOptions { residence: Residence::Owned, ..ModelOptions::default() })?;
    let prompts = 0..PROMPTS.len() * REPETITIONS.len();
    let expected = prompts.map(|which| answer(&resident, which, &options()));
    let expected = expected.collect::<Result<Vec<_>, _>>()?;
    drop(resident);
    let folder = tempfile::tempdir()?;
    let (directory, reads) = (folder.path().join("pages"), PageReads::Always);
    let page_store = PageStore::open(PageStoreOptions {
        directory: directory.clone(),
        bytes_max: 32 << 20,
        reads,
    })?;
    let options = ModelOptions {
        residence: Residence::Streamed,
        context_length: Some(512),
        // Pages for about half of the threads.
        kv_tokens: Some(1024),
        page_store: Some(page_store),
        ..ModelOptions::default()
    };
    let (engine, model) = open(Some(64 << 20), &options)?;
    let load = &Load {
        engine,
        model,
        expected,
        ends: Instant::now() + Duration::from_secs(60 * minutes),
        running: RwLock::new(()),
        answers: AtomicU64::new(0),
        cancelled: AtomicU64::new(0),
    };
    thread::scope(|scope| {
        let threads: Vec<_> =
            (1..=THREADS).map(|seed| scope.spawn(move || load.generate(seed))).collect();
        let supervised =
            supervise(load, &directory, || threads.iter().any(|thread| thread.is_finished()));
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })?;
        supervised
    })?;
    load.audit()?;
    let [answers, cancelled] =
        [&load.answers, &load.cancelled].map(|count| count.load(Ordering::Relaxed));
    let preemptions = load.engine.status().preemptions;
    println!(
        "{answers} answers as they should be, {cancelled} cancelled, {preemptions} preemptions"
    );
    Ok(())
}

/// Changes budgets, spoils files and audits until the end, or until a thread has failed.
fn supervise(load: &Load, pages: &Path, has_failed: impl Fn() -> bool) -> Result<(), Failure> {
    let whole = load.model.memory_plan().map_or(0, |plan| plan.expert_bytes_total);
    let (mut state, mut changes, mut spoiled) = (7, 0u64, 0u64);
    let (begun, mut told) = (Instant::now(), Duration::ZERO);
    while Instant::now() < load.ends && !has_failed() {
        // A budget between a sixteenth and all of the experts.
        load.model.set_expert_budget(whole / 16 * (1 + below(&mut state, 16) as u64))?;
        if below(&mut state, 3) == 0 {
            load.model.shed_experts(whole / 4);
        }
        changes += 1;
        // Most pages live long enough to be read.
        if below(&mut state, 8) == 0 {
            spoiled += u64::from(spoil(pages, &mut state).is_some());
        }
        thread::sleep(Duration::from_millis(below(&mut state, 200) as u64));
        if begun.elapsed() >= told {
            told += Duration::from_secs(60);
            load.audit()?;
            let status = load.engine.status();
            let memory = resident_kib().map_or("unknown".into(), |kib| format!("{kib} KiB"));
            println!(
                "{:>5} s: {} answers, {} cancelled, {changes} budgets, {spoiled} files spoiled, {} preemptions, {:?}, memory {memory}",
                begun.elapsed().as_secs(),
                load.answers.load(Ordering::Relaxed),
                load.cancelled.load(Ordering::Relaxed),
                status.preemptions,
                status.page_store,
            );
        }
    }
    Ok(())
}
