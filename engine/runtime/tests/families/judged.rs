//! Configurations of no published model: unusual shapes and switches, missing keys, changed keys.
//!
//! Each one yields the logits of transformers, or an error that names the unsupported part.
//! `scripts/make_judged.py` describes the files. The checkpoints are generated here from names, shapes and
//! seeds.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use nestling_cpu::Cpu;
use nestling_formats::Level;
use nestling_import::Checkpoint;
use nestling_runtime::model::RunnerOptions;
use serde_json::{Map, Value, json};

use nestling_testkit::runners::{all_logits, checkpoint, data, golden_json, runner, token_list};

/// Maximum difference of a logit.
const LOGIT_TOLERANCE: f32 = 2e-4;

/// The value 1.0 in the fixed-point numbers that weights are generated from.
const UNIT: f32 = (1u32 << 20) as f32;

/// 64-bit FNV-1a hash.
fn key(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |key, byte| {
        (key ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The finalizer of splitmix64.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Generates a tensor by its rule `[shape, centre, spread]`.
fn values(seed: u64, name: &str, rule: &Value) -> Vec<f32> {
    let number = |at: usize| rule[at].as_i64().unwrap();
    let count: u64 =
        rule[0].as_array().unwrap().iter().map(|size| size.as_u64().unwrap()).product();
    let key = key(&format!("{seed}/{name}"));
    let value = |index: u64| {
        let step = mix(key.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15))) as i64 >> 53;
        (number(1) + number(2) * step) as f32 / UNIT
    };
    (0..count).map(value).collect()
}

/// Expands `{N}` in names to all numbers below N.
fn expanded(tensors: &Value) -> BTreeMap<String, &Value> {
    let mut out = BTreeMap::new();
    for (name, rule) in tensors.as_object().unwrap() {
        let parts =
            name.split_once('{').map(|(front, rest)| (front, rest.split_once('}').unwrap()));
        let Some((front, (count, end))) = parts else {
            out.insert(name.clone(), rule);
            continue;
        };
        for number in 0..count.parse::<usize>().unwrap() {
            out.insert(format!("{front}{number}{end}"), rule);
        }
    }
    out
}

fn write_weights(made: &Value, path: &Path) {
    let seed = made["seed"].as_u64().unwrap();
    let (mut header, mut bytes) = (Map::new(), Vec::new());
    for (name, rule) in expanded(&made["tensors"]) {
        let first = bytes.len();
        bytes.extend(values(seed, &name, rule).into_iter().flat_map(f32::to_le_bytes));
        let offsets = [first, bytes.len()];
        header.insert(name, json!({ "dtype": "F32", "shape": rule[0], "data_offsets": offsets }));
    }
    let header = Value::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &bytes].concat();
    fs::write(path, file).unwrap();
}

/// Returns the configuration of a case: the checkpoint's, with keys changed and removed.
fn config(golden: &Value, case: &Value, made: &Value) -> Value {
    let mut config = made["config"].clone();
    let within = golden["text"].as_array().unwrap();
    let text = within.iter().fold(&mut config, |value, key| &mut value[key.as_str().unwrap()]);
    for (key, value) in case["changes"].as_object().into_iter().flatten() {
        text[key] = value.clone();
    }
    for key in case["without"].as_array().into_iter().flatten() {
        text.as_object_mut().unwrap().remove(key.as_str().unwrap());
    }
    config
}

/// Returns a description of the fault of a case, if any. `unchanged` has the logits without the change.
fn fault(golden: &Value, case: &Value, unchanged: &Value, folder: &Path) -> Option<String> {
    if let Some(names) = case["refused"].as_array() {
        return match Checkpoint::open(folder) {
            Ok(_) => Some(format!("accepted, and must be refused by {names:?}")),
            Err(error) => {
                let error = error.to_string();
                let named = names.iter().all(|name| error.contains(name.as_str().unwrap()));
                (!named).then(|| format!("`{error}` does not name {names:?}"))
            }
        };
    }
    if let Err(error) = Checkpoint::open(folder) {
        return Some(format!("refused: {error}"));
    }
    let source = checkpoint(folder);
    let vocab_size = source.config().vocab_size;
    let mut runner = runner(Cpu::new(1), &source, &RunnerOptions::default());
    let found = all_logits(&mut runner, &token_list(&golden["tokens"]), Level::L8, 37);
    let expected = if case["same"] == true { unchanged } else { &case["logits"] };
    let Some(expected) = expected.as_array() else {
        return Some("nothing says what must come of it".into());
    };
    let mut largest = 0.0f32;
    for (position, row) in golden["positions"].as_array().unwrap().iter().zip(expected) {
        let at = position.as_u64().unwrap() as usize * vocab_size;
        let columns = golden["columns"].as_array().unwrap();
        for (column, expected) in columns.iter().zip(row.as_array().unwrap()) {
            let found = found[at + column.as_u64().unwrap() as usize];
            let difference = (found - expected.as_f64().unwrap() as f32).abs();
            largest = if difference.is_nan() { f32::INFINITY } else { largest.max(difference) };
        }
    }
    (largest > LOGIT_TOLERANCE).then(|| format!("logits differ by {largest}"))
}

fn is_judged(family: &str) {
    let golden = golden_json(&data("judged").join(format!("{family}.json")));
    let checkpoints = golden["checkpoints"].as_array().unwrap();
    let folders: Vec<_> = checkpoints.iter().map(|_| tempfile::tempdir().unwrap()).collect();
    for (made, folder) in checkpoints.iter().zip(&folders) {
        write_weights(made, &folder.path().join("model.safetensors"));
    }
    let (mut faults, mut unchanged) = (Vec::new(), &Value::Null);
    let cases = golden["cases"].as_array().unwrap();
    for case in cases {
        let number = case["checkpoint"].as_u64().unwrap() as usize;
        let config = config(&golden, case, &checkpoints[number]);
        fs::write(folders[number].path().join("config.json"), config.to_string()).unwrap();
        if case.get("changes").is_none() {
            unchanged = &case["logits"];
        }
        if let Some(fault) = fault(&golden, case, unchanged, folders[number].path()) {
            let (changes, without) = (&case["changes"], &case["without"]);
            faults.push(format!("checkpoint {number}, {changes}, without {without}: {fault}"));
        }
    }
    assert!(faults.is_empty(), "{family}, {} cases:\n{}", cases.len(), faults.join("\n"));
}

macro_rules! judged {
    ($($family:ident),*) => {
        $(
            #[test]
            fn $family() {
                is_judged(stringify!($family));
            }
        )*

        /// Checks that all case files are listed.
        #[test]
        fn every_family_is_judged() {
            let mut listed: Vec<_> = [$(concat!(stringify!($family), ".json")),*].into();
            listed.sort_unstable();
            let files = fs::read_dir(data("judged")).unwrap();
            let mut found: Vec<_> =
                files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
            found.sort_unstable();
            assert_eq!(found, listed);
        }
    };
}

judged!(
    qwen3_moe,
    qwen2_moe,
    qwen3_next,
    qwen3_5_moe,
    qwen3_5_moe_text,
    olmoe,
    mixtral,
    granitemoe,
    deepseek_v2,
    deepseek_v3,
    glm4_moe_lite,
    gemma4,
    gemma4_text,
    gpt_oss
);
