//! Failure of each large allocation in turn: the result is an out-of-memory error, never an abort.
#![expect(unsafe_code, reason = "an allocator that refuses")]
#![expect(clippy::print_stdout, reason = "says what it measured")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Display;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nestling_convert::convert::{ConvertOptions, SourceBlocks, convert};
use nestling_core::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::KvDtype;
use nestling_cpu::Cpu;
use nestling_experts::expert::{ExpertSource, HostOptions, Prefetch, StoreSource, StreamOptions};
use nestling_experts::reads::ReadOptions;
use nestling_formats::Level;
use nestling_formats::store::{MappedStore, Store};
use nestling_import::gguf::GgufHeader;
use nestling_import::{Checkpoint, ImportError};
use nestling_runtime::model::{Runner, RunnerOptions};
use nestling_runtime::{
    Engine, EngineOptions, Event, GenerateOptions, Model, ModelOptions, Residence, SnapshotContents,
};
use nestling_text::EncodeOptions;

/// The system's allocator, which refuses one large allocation.
struct RefusingAllocator;

/// Minimum size in bytes of an allocation that may be refused.
static LARGE_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Number of large allocations so far, and the number of the one to refuse.
static LARGE_SEEN: AtomicUsize = AtomicUsize::new(0);
static REFUSED: AtomicUsize = AtomicUsize::new(0);

/// Returns true if this allocation is the one to refuse.
fn refuses(bytes: usize) -> bool {
    bytes >= LARGE_BYTES.load(Ordering::Relaxed)
        && LARGE_SEEN.fetch_add(1, Ordering::Relaxed) + 1 == REFUSED.load(Ordering::Relaxed)
}

// SAFETY: an allocator may return null when it is out of memory; other calls are forwarded unchanged.
unsafe impl GlobalAlloc for RefusingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: upheld by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: upheld by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: upheld by the caller.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if refuses(size) {
            return std::ptr::null_mut();
        }
        // SAFETY: upheld by the caller.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: RefusingAllocator = RefusingAllocator;

/// Runs [`refuse_each_anew`] without preparation.
fn refuse_each<T, E: Display>(
    name: &str,
    large_bytes: usize,
    mut work: impl FnMut() -> Result<T, E>,
) {
    refuse_each_anew(name, large_bytes, 1, || (), |()| work());
}

/// Returns 7, or 1 if NESTLING_TEST_EVERY_ALLOCATION is set: a step over allocations of work that has hundreds of them.
fn long_step() -> usize {
    if std::env::var_os("NESTLING_TEST_EVERY_ALLOCATION").is_some() { 1 } else { 7 }
}

/// Runs `work` with one failing allocation of `large_bytes` or more: the first, then the one `step` further on, until no
/// allocation is left. `prepare` makes the input of each run. An infallible allocation aborts the process.
fn refuse_each_anew<P, T, E: Display>(
    name: &str,
    large_bytes: usize,
    step: usize,
    mut prepare: impl FnMut() -> P,
    mut work: impl FnMut(P) -> Result<T, E>,
) {
    for at in (1..10_000).step_by(step) {
        let prepared = prepare();
        REFUSED.store(at, Ordering::Relaxed);
        LARGE_SEEN.store(0, Ordering::Relaxed);
        LARGE_BYTES.store(large_bytes, Ordering::Relaxed);
        let result = work(prepared);
        LARGE_BYTES.store(usize::MAX, Ordering::Relaxed);
        let was_refused = LARGE_SEEN.load(Ordering::Relaxed) >= at;
        match result {
            // Optional allocations may fail silently.
            Ok(_) if was_refused => {}
            Ok(_) => {
                println!("{name}: allocations up to {at} refused, every {step}");
                assert!(at > 1, "{name} has no large allocation");
                return;
            }
            Err(error) => {
                let error = error.to_string();
                assert!(was_refused && error.contains("memory"), "{name}, {at}: {error}");
            }
        }
    }
    panic!("{name} goes on for ever");
}

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn bundled() -> PathBuf {
    data("../../models/nestling-storyteller.nest")
}

/// A single test, so that no other thread allocates meanwhile.
#[test]
fn large_allocations_may_fail() {
    store();
    checkpoint();
    gguf();
    weights();
    streamed();
    session();
    tokenization();
    generation();
    conversion();
}

fn store() {
    refuse_each("store", 4 << 10, || {
        let store = Store::open(bundled())?;
        let report = store.verify(&mut |_| ControlFlow::Continue(()))?;
        assert!(report.damage.is_empty());
        let names: Vec<String> = store.asset_names().map(String::from).collect();
        names.iter().try_for_each(|name| store.asset(name).map(|_| ()))
    });
}

/// Reads a checkpoint with a header and a tensor of some size.
fn checkpoint() {
    refuse_each("checkpoint", 4 << 10, || {
        let checkpoint = Checkpoint::open(data("tests/data/tiny-qwen3-moe"))?;
        checkpoint.source_hash(&mut |_| ControlFlow::Continue(()))?;
        let embedding = checkpoint.tensor("model.embed_tokens.weight").unwrap();
        checkpoint.read_bytes(embedding)?;
        checkpoint.read_f32(embedding)?;
        checkpoint.assets().map(|_| ())
    });
}

/// Reads a GGUF header with a vocabulary of realistic size.
fn gguf() {
    let path = data("tests/data/gguf/k-quants.gguf");
    let bytes = fs::read(path).unwrap();
    refuse_each("gguf", 4 << 10, || {
        let mut read = |offset: u64, out: &mut [u8]| {
            let at = usize::try_from(offset).unwrap();
            out.copy_from_slice(&bytes[at..at + out.len()]);
            Ok::<_, ImportError>(())
        };
        GgufHeader::read("k-quants.gguf", bytes.len() as u64, &mut read)
    });
}

/// Loads weights into memory and mapped.
fn weights() {
    let load = |is_mapped: bool| {
        let store = Arc::new(Store::open(bundled())?);
        let source: Arc<dyn ExpertSource> = match is_mapped {
            // SAFETY: the bundled store is never written.
            true => Arc::new(StoreSource::mapped(unsafe { MappedStore::new(store) }?, None)?),
            false => Arc::new(StoreSource::owned(store, Some(Level::L4))?),
        };
        let options = RunnerOptions {
            kv_dtype: KvDtype::F16,
            kv_pages: Some(24),
            ..RunnerOptions::default()
        };
        Runner::load(Cpu::new(1), source, &options, &CancelToken::new(), &mut |_, _| {})
    };
    refuse_each("weights", 64 << 10, || load(false).and_then(|_| load(true)));
}

/// Saves, forks and restores a session with a long history.
fn session() {
    let engine =
        Engine::new(EngineOptions { threads: Some(1), ..EngineOptions::default() }).unwrap();
    let options = ModelOptions { context_length: Some(1024), ..ModelOptions::default() };
    let model =
        Model::open(&engine, bundled(), &options, &mut |_| {}, &CancelToken::new()).unwrap();
    let mut session = model.session();
    let tokens: Vec<u32> = (0..300).collect();
    let options = GenerateOptions { max_tokens: Some(2), ..GenerateOptions::default() };
    for event in session.generate(&tokens[..], &options).unwrap() {
        assert!(matches!(event.unwrap(), Event::Text(_) | Event::Finished(_) | Event::Token(_)));
    }
    let mut saved = Vec::new();
    refuse_each("snapshot", 4 << 10, || {
        session.snapshot(SnapshotContents::TokensAndPages).map(|bytes| saved = bytes)
    });
    refuse_each("restored", 4 << 10, || model.restore(&saved));
    let history: Vec<u32> = (0..1000).map(|at| at % 300).collect();
    refuse_each("history", 3 << 10, || {
        let mut session = model.session();
        session.append(&history)?;
        let mut fork = session.fork()?;
        fork.shift(10, 100)?;
        fork.replace(fork.tokens()?)?;
        fork.snapshot(SnapshotContents::Tokens).and_then(|saved| model.restore(&saved))
    });
}

/// Encodes a text of few long words, for which the library allocates less at once than the check of the memory.
fn tokenization() {
    let engine =
        Engine::new(EngineOptions { threads: Some(1), ..EngineOptions::default() }).unwrap();
    let options = ModelOptions { context_length: Some(64), ..ModelOptions::default() };
    let model =
        Model::open(&engine, bundled(), &options, &mut |_| {}, &CancelToken::new()).unwrap();
    let text = format!("{} ", "a".repeat(400)).repeat(1000);
    refuse_each("tokenization", 24 << 20, || {
        model.tokenizer().unwrap().encode(&text, EncodeOptions::default())
    });
}

/// Opens a model with streamed experts.
fn streamed() {
    let streaming = StreamOptions {
        budget_bytes: 2 << 20,
        reads: ReadOptions::default(),
        prefetch: Prefetch::default(),
        host: HostOptions::default(),
    };
    refuse_each("streamed", 48 << 10, || {
        let source: Arc<dyn ExpertSource> =
            Arc::new(StoreSource::owned(Arc::new(Store::open(bundled())?), Some(Level::L4))?);
        let options = RunnerOptions {
            kv_pages: Some(24),
            streaming: Some(streaming.clone()),
            ..RunnerOptions::default()
        };
        Runner::load(Cpu::new(1), source, &options, &CancelToken::new(), &mut |_, _| {})
    });
}

/// Opens a new model for each attempt, so that no buffers of earlier steps exist.
fn opened(residence: Residence) -> Model {
    let engine =
        Engine::new(EngineOptions { threads: Some(1), ..EngineOptions::default() }).unwrap();
    let options = ModelOptions { context_length: Some(512), residence, ..ModelOptions::default() };
    Model::open(&engine, bundled(), &options, &mut |_| {}, &CancelToken::new()).unwrap()
}

fn generation() {
    let tokens: Vec<u32> = (0..200).collect();
    // Sampling buffers are bounded by the vocabulary, and their allocation is infallible.
    let options = GenerateOptions { max_tokens: Some(3), ..GenerateOptions::greedy() };
    for (residence, step) in [(Residence::Owned, 1), (Residence::Streamed, long_step())] {
        let (prepare, name) = (|| opened(residence), format!("{residence:?} generation"));
        refuse_each_anew(&name, 48 << 10, step, prepare, |model| {
            let generation = model.session().generate(&tokens[..], &options)?;
            for event in generation {
                event?;
            }
            Ok::<_, EngineError>(())
        });
    }
}

/// Converts a file with exact scaled integers. Fitting of nested codes still allocates infallibly.
fn conversion() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made.nest");
    let prepare = || Checkpoint::open(data("tests/data/gguf/olmoe.gguf")).unwrap();
    let mut options = ConvertOptions::default();
    (options.threads, options.overwrite, options.source_blocks) = (1, true, SourceBlocks::Exact);
    refuse_each_anew("exact conversion", 9 << 10, 1, prepare, |checkpoint| {
        convert(&checkpoint, &path, &options, &CancelToken::new(), &mut |_| {}).map(drop)
    });
}
