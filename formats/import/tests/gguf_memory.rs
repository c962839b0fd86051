//! Malicious files are rejected within a second and with little memory.
#![expect(unsafe_code, reason = "counts what the allocator is asked for")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "says what it measured")]

#[path = "gguf/builder.rs"]
mod builder;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use builder::Builder;
use nestling_import::gguf::{GgufHeader, assets};
use nestling_import::limits::MAX_SAFETENSORS_HEADER_BYTES;
use nestling_import::{Asset, Checkpoint, ImportError};

/// The system allocator with counters of current and peak use.
struct Counting;

static TAKEN: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

fn taken(bytes: usize) {
    let now = TAKEN.fetch_add(bytes, Ordering::Relaxed) + bytes;
    MOST.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: all calls are forwarded unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        TAKEN.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        taken(size);
        TAKEN.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MOST_BYTES: usize = 64 << 20;

/// Returns the CPU time of this thread, if the system reports it. Other programs do not affect it.
fn computed() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
}

/// Reads the parts of a checkpoint that are read before its weights.
fn read(path: &Path) -> Result<Vec<Asset>, ImportError> {
    let mut file = std::fs::File::open(path).unwrap();
    let length = file.metadata().unwrap().len();
    let mut read = |offset: u64, out: &mut [u8]| {
        file.seek(SeekFrom::Start(offset)).unwrap();
        file.read_exact(out).unwrap();
        Ok(())
    };
    let assets = assets(&GgufHeader::read("x.gguf", length, &mut read)?)?;
    Checkpoint::open(path).map(|_| assets)
}

/// Reads a file that must fail with `part` in the error message.
fn refused(folder: &Path, what: &str, part: &str, builder: Builder) {
    let path = folder.join("x.gguf");
    std::fs::write(&path, builder.bytes()).unwrap();
    drop(builder);
    let before = TAKEN.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let (begun, computed_before) = (Instant::now(), computed());
    let error = read(&path).unwrap_err();
    let elapsed = computed().zip(computed_before).map(|(after, before)| after - before);
    let elapsed = elapsed.unwrap_or_else(|| begun.elapsed());
    let most = MOST.load(Ordering::Relaxed) - before;
    let error = error.to_string();
    let length = std::fs::metadata(&path).unwrap().len();
    println!("{what}: {length} bytes, {elapsed:?}, {most} bytes at most: {error}");
    assert!(error.contains(part), "{what}: {error}");
    assert!(error.len() < 1000, "{what}");
    assert!(elapsed < Duration::from_secs(1), "{what}: {elapsed:?}");
    assert!(most < MOST_BYTES, "{what}: {most} bytes");
}

fn vocabulary(tokens: &[&str], merges: &[&str]) -> Builder {
    Builder::new()
        .qwen3_moe()
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "qwen2")
        .texts("tokenizer.ggml.tokens", tokens)
        .texts("tokenizer.ggml.merges", merges)
}

/// Returns `count` distinct texts of the given length.
fn texts(count: usize, length: usize) -> Vec<String> {
    (0..count).map(|index| format!("{index:0length$}")).collect()
}

/// Mutex for the measurements, which cover the whole process.
static ONE: Mutex<()> = Mutex::new(());

/// Opens a safetensors checkpoint of maximum size, which must fail.
fn refused_checkpoint(what: &str, part: &str, files: &[(&str, Vec<u8>)]) {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let before = TAKEN.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let error = Checkpoint::open(folder.path()).unwrap_err().to_string();
    let most = MOST.load(Ordering::Relaxed) - before;
    println!("{what}: {most} bytes at most: {error}");
    assert!(error.contains(part), "{what}: {error}");
    assert!(most < 4 * MOST_BYTES, "{what}: {most} bytes");
}

/// Returns a text that, together with `around`, just fits the header limit.
fn filled(around: (&str, &str), one: impl Fn(usize) -> String) -> Vec<u8> {
    let mut text = around.0.to_owned();
    for at in 0.. {
        let next = one(at);
        if text.len() + next.len() + around.1.len() > MAX_SAFETENSORS_HEADER_BYTES as usize {
            break;
        }
        text.push_str(&next);
    }
    (text + around.1).into_bytes()
}

fn with_length(header: Vec<u8>) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], &header].concat()
}

#[test]
fn harm_in_safetensors_takes_little_memory() {
    let _one = ONE.lock().unwrap();
    let data =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../engine/runtime/tests/data/tiny-tied");
    let config = std::fs::read(data.join("config.json")).unwrap();
    let refused = |what: &str, part: &str, (name, bytes): (&str, Vec<u8>)| {
        refused_checkpoint(what, part, &[("config.json", config.clone()), (name, bytes)]);
    };
    let metadata = filled((r#"{"__metadata__":{"#, r#""":""}}"#), |at| format!(r#""{at}":"","#));
    refused("much metadata", "members", ("model.safetensors", with_length(metadata)));
    let tensor = r#""dtype":"F32","data_offsets":[0,4],"shape":["#;
    let around = (format!("{{\"a\":{{{tensor}"), "1]}}");
    let rank = filled((&around.0, around.1), |_| "1,".into());
    refused("many dimensions", "dimensions", ("model.safetensors", with_length(rank)));
    let around = ("{".to_owned(), format!("\"x\":{{{tensor}1]}}}}"));
    let tensors = filled((&around.0, &around.1), |at| format!("\"{at:x}\":{{{tensor}1]}},"));
    refused("many tensors", "more than", ("model.safetensors", with_length(tensors)));
    let map = filled((r#"{"weight_map":{"#, r#""":""}}"#), |at| format!(r#""{at}":"","#));
    refused("many tensors in files", "members", ("model.safetensors.index.json", map));
    let files = |at| format!(r#""{at:x}":"{at:x}.safetensors","#);
    let map = filled((r#"{"weight_map":{"#, r#""x":"x.safetensors"}}"#), files);
    refused("many files", "members", ("model.safetensors.index.json", map));
}

#[test]
fn harm_is_refused_within_a_second_and_64_mib() {
    let _one = ONE.lock().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let refused = |what: &str, part: &str, builder| refused(folder.path(), what, part, builder);
    let long = "k".repeat(40 << 20);
    refused("a text beyond a header", "exceeds the limit", Builder::new().text("k", &long));
    let bytes = [&(20u64 << 20).to_le_bytes()[..], &vec![0xff; 20 << 20]].concat();
    let not_utf8 = Builder::new().key("tokenizer.ggml.model", 8, &bytes);
    refused("a long text that is none", "UTF-8", not_utf8);
    let names = texts(16_000, 250);
    let keys = names.iter().fold(Builder::new(), |all, name| all.text(name, &long[..1700]));
    refused("many keys", "tokenizer.ggml.model", keys);
    let mut tensors = names.iter().chain(&names).enumerate().fold(
        Builder::new().qwen3_moe().data(1 << 20),
        |all, (at, name)| {
            let name = format!("{}{at:06}", &name[..120]);
            all.tensor(&name, &[1, 1, 1, 4], 0, 1024 + 32 * at as u64)
        },
    );
    tensors = tensors.tensor("last", &[32], 0, 1024 + 32 * 31_000);
    refused("many tensors, the last over another", "behind", tensors);
    let million = Builder::new().array("k", 9, 1_000_000, &vec![0; 12_000_000]);
    refused("a million arrays", "tokenizer.ggml.model", million);
    let types = vocabulary(&["a"], &[]).array("tokenizer.ggml.token_type", 10, 0, &[]);
    refused("no types of tokens", "token_type", types);
    let tokens = texts(500_000, 40);
    let mut list: Vec<&str> = tokens.iter().map(String::as_str).collect();
    list.push(list[0]);
    refused("half a million tokens, one twice", "every token once", vocabulary(&list, &[]));
    list.pop();
    let merges = vocabulary(&list[..250_000], &list[..250_000]);
    refused("merges of nothing", "pairs of tokens", merges);
    let many = texts(600_000, 20);
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    refused("too many tokens", "exceeds the limit", vocabulary(&many, &[]));
    let control = "\u{1}".repeat(12 << 20);
    refused("a long token", "exceeds the limit", vocabulary(&[&control], &[]));
    let control = "\u{1}".repeat(4000);
    let control: Vec<String> = (0..6000).map(|at| format!("{at}{control}")).collect();
    let control: Vec<&str> = control.iter().map(String::as_str).collect();
    refused("tokens that grow", "as JSON", vocabulary(&control, &[]));
    let template = "{{ x }}".repeat(3 << 20);
    let template = vocabulary(&["a"], &[]).text("tokenizer.chat_template", &template);
    refused("a long template", "chat_template", template);
    let sizes = Builder::new().qwen3_moe_of(1024, 4096).tensor("token_embd.weight", &[32, 2], 0, 0);
    let sizes = sizes
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "qwen2")
        .texts("tokenizer.ggml.tokens", &["a", "b"])
        .texts("tokenizer.ggml.merges", &[])
        .data(256);
    refused("more experts than can be listed", "experts of all layers", sizes);
}
