//! Tokenizers that try to exhaust memory: each is rejected or works within 1 GiB.
#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nestling_text::{EncodeOptions, SpecialText, Tokenizer};
use serde_json::{Value, json};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn count(more: usize) {
    let live = LIVE.fetch_add(more, Ordering::Relaxed) + more;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: all calls are forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // The old and the new bytes may exist at the same time.
        count(size);
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Maximum memory in bytes for loading a tokenizer, and for encoding a text.
const BYTES_MAX: usize = 1 << 30;

/// Maximum length of an accepted text in bytes.
const TEXT_BYTES_MAX: usize = 5 << 20;

/// A valid tokenizer of printable ASCII with some parts replaced.
fn with(parts: &[(&str, Value)]) -> String {
    let mut vocab = serde_json::Map::new();
    for character in (33u8..127).map(char::from).chain(['Ġ', 'Ċ', '▁']) {
        vocab.insert(character.to_string(), vocab.len().into());
    }
    let mut json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []},
    });
    for (name, value) in parts {
        json[name] = value.clone();
    }
    json.to_string()
}

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

fn replace(pattern: &Value, content: &str) -> Value {
    json!({"type": "Replace", "pattern": pattern, "content": content})
}

/// Tokenizers that once took more than 1 GiB or panicked.
fn found() -> Vec<(&'static str, String)> {
    let precompiled = |map: &str| json!({"type": "Precompiled", "precompiled_charsmap": map});
    let ids: Vec<u32> = (0..1000).collect();
    let piece = json!({"SpecialToken": {"id": "x", "type_id": 0}});
    let mut single = vec![piece; 100_000];
    single.push(json!({"Sequence": {"id": "A", "type_id": 0}}));
    let token = json!({"x": {"id": "x", "ids": ids, "tokens": vec!["x"; 1000]}});
    let template = json!({"type": "TemplateProcessing", "single": single, "pair": [],
        "special_tokens": token});
    let empty = replace(&json!({"String": ""}), "xx");
    vec![
        ("norm_precompiled", with(&[("normalizer", precompiled("AAAAAAAA"))])),
        ("norm_precompiled2", with(&[("normalizer", precompiled("/////w=="))])),
        ("norm_precompiled3", with(&[("normalizer", precompiled("AAAAAA=="))])),
        ("pre_fixed0", with(&[("pre_tokenizer", json!({"type": "FixedLength", "length": 0}))])),
        ("prepend_empty", with(&[("normalizer", json!({"type": "Prepend", "prepend": ""}))])),
        ("post_grow", with(&[("post_processor", template)])),
        (
            "dec_grow",
            with(&[("decoder", json!({"type": "Sequence", "decoders": vec![empty; 12]}))]),
        ),
        ("regex_look_many", with(&[("pre_tokenizer", split(&"(?=a)".repeat(400)))])),
        ("regex_huge", with(&[("pre_tokenizer", split(&"a|".repeat(2_500_000)))])),
    ]
}

/// Valid tokenizers close to the limits.
fn bounded() -> Vec<(&'static str, String)> {
    let sequence = |parts: Vec<Value>| json!({"type": "Sequence", "pretokenizers": parts});
    let normalizers = |parts: Vec<Value>| json!({"type": "Sequence", "normalizers": parts});
    let letters = "\\p{L}|".repeat(300);
    let classes = format!("(?!x){}a", "\\p{L}|".repeat(80));
    let large = "(?i:[\\p{L}\\p{N}]{20})";
    let growing = (0..6).map(|_| replace(&json!({"String": "a"}), "aa")).collect();
    let token = |at: usize| {
        json!({"id": 200 + at, "content": format!("{at:016}"), "single_word": false,
            "lstrip": true, "rstrip": true, "normalized": false, "special": true})
    };
    let added: Vec<_> = (0..65_536).map(token).collect();
    vec![
        ("alternatives", with(&[("pre_tokenizer", split(&letters))])),
        ("alternatives_look", with(&[("pre_tokenizer", split(&classes))])),
        ("many_large", with(&[("pre_tokenizer", sequence(vec![split(large); 32]))])),
        ("larger", with(&[("pre_tokenizer", split("[\\p{L}\\p{N}]{60}"))])),
        ("largest", with(&[("pre_tokenizer", sequence(vec![split("\\p{L}{100}"); 32]))])),
        ("growing", with(&[("normalizer", normalizers(growing))])),
        ("added", with(&[("added_tokens", json!(added))])),
        ("characters", with(&[("pre_tokenizer", split("."))])),
        ("one_word", with(&[])),
        (
            "digits",
            with(&[("pre_tokenizer", json!({"type": "Digits", "individual_digits": true}))]),
        ),
        ("slow_split", with(&[("pre_tokenizer", split("a+b|a"))])),
        ("slow_replace", with(&[("normalizer", replace(&json!({"Regex": "a+b|a"}), "a"))])),
        (
            "byte_level",
            with(&[(
                "pre_tokenizer",
                json!({"type": "ByteLevel",
            "add_prefix_space": false, "trim_offsets": true, "use_regex": true}),
            )]),
        ),
    ]
}

/// Returns the peak memory that `work` allocates in addition to live memory, and its result.
fn peak<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let out = work();
    (PEAK.load(Ordering::Relaxed).saturating_sub(before), out)
}

/// A single test, so that no other test allocates at the same time.
#[test]
fn hostile_tokenizers_are_refused_in_little_memory() {
    let mut faults = String::new();
    let named = found().into_iter().map(|tokenizer| (tokenizer, false));
    let sound = bounded().into_iter().map(|tokenizer| (tokenizer, true));
    for ((name, file), may_load) in named.chain(sound) {
        let start = Instant::now();
        let (bytes, tokenizer) = peak(|| Tokenizer::from_bytes(name, file.as_bytes()));
        let mib = bytes >> 20;
        let what = tokenizer.as_ref().map_or_else(ToString::to_string, |_| "loaded".into());
        println!("{name}: {:.0?}, {mib} MiB, {what:.150}", start.elapsed());
        if bytes > BYTES_MAX || (!may_load && tokenizer.is_ok()) {
            writeln!(faults, "{name}: {mib} MiB, {what:.150}").unwrap();
        }
        let Ok(tokenizer) = tokenizer else { continue };
        for text in texts(name) {
            let start = Instant::now();
            let (bytes, tokens) = peak(|| encode(&tokenizer, &text));
            let (mib, time) = (bytes >> 20, start.elapsed());
            println!("    {} bytes: {time:.0?}, {mib} MiB, {tokens:?}", text.len());
            // Slow encodings are cancelled after 100 ms and may continue for 250 ms more.
            if bytes > BYTES_MAX || (name.starts_with("slow") && time > SLOW + PATIENCE) {
                writeln!(faults, "{name}: {mib} MiB and {time:.0?} for {} bytes", text.len())
                    .unwrap();
            }
        }
    }
    assert!(faults.is_empty(), "{faults}");
}

/// Texts that stress a tokenizer; the longest ones where memory depends on the length.
fn texts(name: &str) -> Vec<String> {
    let longest = ["characters", "one_word", "byte_level", "digits", "growing"];
    let bytes = if longest.contains(&name) { TEXT_BYTES_MAX } else { 64 << 10 };
    let short = "a".repeat(64 << 10);
    let (one_word, digits) = ("a".repeat(bytes), "1".repeat(bytes));
    vec![one_word, digits, "ab c.1 ".repeat(bytes / 10), "a1".repeat(bytes / 3), short]
}

/// Time after which slow encodings are cancelled, and their grace period.
const SLOW: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_millis(250);

fn encode(tokenizer: &Tokenizer, text: &str) -> Result<usize, String> {
    let options = EncodeOptions { special_text: SpecialText::Parse, ..Default::default() };
    let start = Instant::now();
    let is_slow = text.len() == 64 << 10;
    let tokens = tokenizer.encode_until(text, options, &|| is_slow && start.elapsed() > SLOW);
    tokens.map(|tokens| tokens.len()).map_err(|error| error.to_string())
}
