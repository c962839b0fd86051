//! Whole conversions of mutated tiny checkpoints and GGUF files. They are rejected, or become stores that
//! open, verify and compute. Larger ones are only opened and planned for.

#![no_main]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use nestling_convert::convert::{ConvertOptions, SourceBlocks, convert, plan_store};
use nestling_core::CancelToken;
use nestling_formats::Level;
use nestling_formats::store::Store;
use nestling_import::Checkpoint;
use nestling_runtime::{
    Driver, Engine, EngineOptions, GenerateOptions, Input as Prompt, Model, ModelOptions,
};
use serde_json::Value;

#[derive(Arbitrary, Debug)]
enum JsonChange {
    /// Replaces a value with a number, a text or null.
    Number {
        at: u16,
        of: u8,
    },
    Any {
        at: u16,
        number: i64,
    },
    Text {
        at: u16,
        text: String,
    },
    Null {
        at: u16,
    },
    Remove {
        at: u16,
    },
    List {
        at: u16,
        numbers: Vec<u16>,
    },
}

#[derive(Arbitrary, Debug)]
struct Edit {
    at: u32,
    bytes: Vec<u8>,
}

#[derive(Arbitrary, Debug)]
struct Input {
    family: u8,
    gguf: bool,
    config: Vec<JsonChange>,
    /// Changes of a safetensors header.
    header: Vec<JsonChange>,
    /// Changes of the weights, or of all bytes of a GGUF file.
    weights: Vec<Edit>,
    front: Vec<Edit>,
    tokenizer: Vec<Edit>,
    level: u8,
    /// True to keep scaled integers, which are transcoded without a search for codes.
    exact: bool,
    cut: Option<u32>,
}

const NUMBERS: [f64; 20] = [
    0.0,
    1.0,
    2.0,
    3.0,
    5.0,
    7.0,
    8.0,
    16.0,
    31.0,
    33.0,
    64.0,
    -1.0,
    255.0,
    65536.0,
    1e9,
    4294967295.0,
    1e-30,
    1e30,
    0.5,
    1e308,
];

/// Maximum size in bytes of converted weights, which take some tenths of a second under the sanitizer.
const CONVERTED_BYTES_MAX: u64 = 130_000;

type Files = Vec<(String, Vec<u8>)>;

/// Tiny checkpoints of all families, and GGUF files.
struct Samples {
    checkpoints: Vec<Files>,
    gguf: Vec<Vec<u8>>,
}

fn samples() -> &'static Samples {
    static SAMPLES: OnceLock<Samples> = OnceLock::new();
    SAMPLES.get_or_init(|| {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/runtime/tests/data");
        let entries = |folder: PathBuf| {
            let mut all: Vec<PathBuf> =
                std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
            all.sort();
            all
        };
        let checkpoints = entries(data.join("families")).into_iter();
        let checkpoints = checkpoints.filter(|folder| folder.join("model.safetensors").is_file());
        let read = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read(path).unwrap())
        };
        let checkpoints = checkpoints.map(|folder| entries(folder).iter().map(read).collect());
        let gguf = entries(data.join("gguf")).into_iter();
        let gguf = gguf.filter(|path| path.extension().is_some_and(|kind| kind == "gguf"));
        Samples {
            checkpoints: checkpoints.collect(),
            gguf: gguf.map(|path| std::fs::read(path).unwrap()).collect(),
        }
    })
}

fn places<'a>(json: &'a Value, path: &str, out: &mut Vec<String>) {
    let mut go = |key: &str, value: &'a Value| {
        let path = format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
        out.push(path.clone());
        places(value, &path, out);
    };
    match json {
        Value::Object(map) => map.iter().for_each(|(key, value)| go(key, value)),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(at, value)| go(&at.to_string(), value));
        }
        _ => {}
    }
}

fn change(json: &mut Value, change: &JsonChange) {
    let mut all = Vec::new();
    places(json, "", &mut all);
    if all.is_empty() {
        return;
    }
    let (at, value) = match change {
        JsonChange::Number { at, of } => {
            let number = NUMBERS[usize::from(*of) % NUMBERS.len()];
            let whole = number.fract() == 0.0 && number.abs() < 1e18;
            (at, Some(if whole { Value::from(number as i64) } else { Value::from(number) }))
        }
        JsonChange::Any { at, number } => (at, Some(Value::from(*number))),
        JsonChange::Text { at, text } => (at, Some(Value::from(text.as_str()))),
        JsonChange::Null { at } => (at, Some(Value::Null)),
        JsonChange::List { at, numbers } => (at, Some(Value::from(numbers.clone()))),
        JsonChange::Remove { at } => (at, None),
    };
    let path = &all[usize::from(*at) % all.len()];
    match value {
        Some(value) => json.pointer_mut(path).into_iter().for_each(|found| *found = value.clone()),
        None => {
            let (parent, key) = path.rsplit_once('/').unwrap();
            let key = key.replace("~1", "/").replace("~0", "~");
            if let Some(Value::Object(map)) = json.pointer_mut(parent) {
                map.shift_remove(&key);
            }
        }
    }
}

fn changed(bytes: &[u8], changes: &[JsonChange]) -> Vec<u8> {
    let Ok(mut json) = serde_json::from_slice(bytes) else { return bytes.to_vec() };
    changes.iter().take(4).for_each(|made| change(&mut json, made));
    if changes.is_empty() { bytes.to_vec() } else { json.to_string().into_bytes() }
}

fn edit(bytes: &mut [u8], edits: &[Edit]) {
    for Edit { at, bytes: made } in edits.iter().take(8) {
        let at = *at as usize % bytes.len().max(1);
        let count = made.len().min(bytes.len() - at);
        bytes[at..at + count].copy_from_slice(&made[..count]);
    }
}

fn safetensors(bytes: &[u8], input: &Input) -> Vec<u8> {
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header = changed(&bytes[8..8 + length], &input.header);
    let mut weights = bytes[8 + length..].to_vec();
    edit(&mut weights, &input.weights);
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header);
    out.extend(weights);
    edit(
        &mut out,
        &input
            .front
            .iter()
            .map(|e| Edit { at: e.at % 64, bytes: e.bytes.clone() })
            .collect::<Vec<_>>(),
    );
    out
}

/// Writes the mutated model and returns its path.
fn write(folder: &Path, input: &Input) -> PathBuf {
    let samples = samples();
    let cut = |mut bytes: Vec<u8>| {
        if let Some(length) = input.cut {
            bytes.truncate(length as usize % (bytes.len() + 1));
        }
        bytes
    };
    if input.gguf {
        let mut bytes = samples.gguf[usize::from(input.family) % samples.gguf.len()].clone();
        let front = bytes.len().min(8192);
        edit(&mut bytes[..front], &input.front);
        edit(&mut bytes, &input.weights);
        let path = folder.join("model.gguf");
        std::fs::write(&path, cut(bytes)).unwrap();
        return path;
    }
    let files = &samples.checkpoints[usize::from(input.family) % samples.checkpoints.len()];
    for (name, bytes) in files {
        let bytes = match name.as_str() {
            "config.json" => changed(bytes, &input.config),
            "model.safetensors" => cut(safetensors(bytes, input)),
            "tokenizer.json" => {
                let mut bytes = bytes.clone();
                edit(&mut bytes, &input.tokenizer);
                bytes
            }
            _ => bytes.clone(),
        };
        std::fs::write(folder.join(name), bytes).unwrap();
    }
    folder.to_owned()
}

fn run(folder: &Path, input: &Input) {
    let Ok(checkpoint) = Checkpoint::open(write(folder, input)) else { return };
    let level = Level::ALL[usize::from(input.level) % Level::ALL.len()];
    let mut options = ConvertOptions::default();
    (options.threads, options.level) = (1, level);
    if input.exact {
        options.source_blocks = SourceBlocks::Exact;
    }
    let most = if input.exact && input.gguf { u64::MAX } else { CONVERTED_BYTES_MAX };
    if checkpoint.weight_bytes() > most {
        let _ = plan_store(&checkpoint, vec![0; 16], &options);
        return;
    }
    let path = folder.join("made.nest");
    let cancel = CancelToken::new();
    if convert(&checkpoint, &path, &options, &cancel, &mut |_| {}).is_err() {
        return;
    }
    let store = Store::open(&path).expect("a converted store opens");
    let report = store.verify(&mut |_| ControlFlow::Continue(())).expect("it can be read");
    assert!(report.damage.is_empty(), "{report:?}");
    drop(store);
    let engine = Engine::new(EngineOptions {
        driver: Driver::Caller,
        memory_budget: Some(256 << 20),
        threads: Some(1),
        ..EngineOptions::default()
    });
    let options =
        ModelOptions { context_length: Some(128), kv_tokens: Some(128), ..ModelOptions::default() };
    let opened = Model::open(&engine.unwrap(), &path, &options, &mut |_| {}, &cancel);
    let Ok(model) = opened else { return };
    let mut session = model.session();
    if session.append(&[1, 2, 0]).is_ok() {
        let options = GenerateOptions { max_tokens: Some(1), ..GenerateOptions::greedy() };
        if let Ok(generation) = session.generate(Prompt::History, &options) {
            generation.for_each(drop);
        }
    }
}

fuzz_target!(|input: Input| {
    let memory = Path::new("/dev/shm");
    let made = tempfile::Builder::new().prefix("fuzz-convert").tempdir_in(memory);
    let folder = made.or_else(|_| tempfile::tempdir()).unwrap();
    run(folder.path(), &input);
});
