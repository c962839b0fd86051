//! Checkpoints and safetensors files: successful reads, and rejected files with their errors.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests may panic")]

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

#[cfg(unix)]
use nestling_formats::store::Store;
use nestling_formats::{DType, FloatId, FloatKind, MatrixId, MatrixKind};
use nestling_import::safetensors::{SafetensorsHeader, header_length};
use nestling_import::{Checkpoint, ImportError, ModelConfig, ModelShape, names};
use proptest::prelude::*;
use serde_json::{Value, json};

type Tensors = Vec<(String, Vec<u64>)>;

fn config(changes: &[(&str, Value)]) -> Value {
    let mut config = json!({
        "model_type": "qwen3_moe",
        "vocab_size": 6,
        "hidden_size": 4,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 2,
        "max_position_embeddings": 16,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 3,
        "eos_token_id": 5
    });
    for (key, value) in changes {
        config[key] = value.clone();
    }
    config
}

/// Returns names and shapes of the tensors that a configuration requires.
fn tensors(config: &Value) -> Tensors {
    let config = ModelConfig::from_json("config.json", config.to_string().as_bytes()).unwrap();
    let shape = ModelShape::new(&config);
    let matrix = |id| names::matrix_tensors(&config, id).remove(0).name;
    let float = |id| names::float_tensor(&config, id).unwrap().name;
    let mut out: Tensors = Vec::new();
    out.extend(shape.matrices.iter().map(|m| (matrix(m.id), vec![m.rows as u64, m.cols as u64])));
    out.extend(shape.floats.iter().map(|f| {
        let vector = f.id.kind != FloatKind::Router;
        let dims = if vector { vec![f.cols as u64] } else { vec![f.rows as u64, f.cols as u64] };
        (float(f.id), dims)
    }));
    out
}

/// Returns a file with f32 tensors that count up in quarters.
fn file(tensors: &[(String, Vec<u64>)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut data = Vec::new();
    for (name, shape) in tensors {
        let start = data.len();
        for i in 0..shape.iter().product::<u64>() {
            data.extend((i as f32 / 4.0).to_le_bytes());
        }
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    raw_file(&Value::Object(header).to_string(), &data)
}

fn raw_file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(data);
    out
}

/// Returns a directory with a valid checkpoint in one file.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let config = config(&[]);
    fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    fs::write(directory.path().join("model.safetensors"), file(&tensors(&config))).unwrap();
    directory
}

fn message(directory: &Path) -> String {
    Checkpoint::open(directory).expect_err("it is not sound").to_string()
}

#[track_caller]
fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
}

#[test]
fn a_checkpoint_is_read() {
    let directory = directory();
    fs::write(directory.path().join("tokenizer.json"), "{}").unwrap();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let id = MatrixId { kind: MatrixKind::Down, layer: Some(1), expert: Some(0) };
    let place = checkpoint.matrix(id).unwrap();
    assert_eq!((place.dtype(), place.rows(), place.cols()), (DType::F32, 4, 3));
    assert_eq!(place.length(), 48);
    let expected: Vec<f32> = (0..12).map(|i| i as f32 / 4.0).collect();
    assert_eq!(checkpoint.read_matrix(id).unwrap(), expected);
    let bytes: Vec<u8> = expected.iter().flat_map(|v| v.to_le_bytes()).collect();
    assert_eq!(checkpoint.read_matrix_bytes(id).unwrap(), bytes);
    let norm = FloatId { kind: FloatKind::FinalNorm, layer: None };
    assert_eq!(checkpoint.read_float(norm).unwrap(), &expected[..4]);
    let assets = checkpoint.assets().unwrap();
    assert_eq!(
        assets.iter().map(|a| &a.name).collect::<Vec<_>>(),
        ["config.json", "tokenizer.json"]
    );
    let none = MatrixId { kind: MatrixKind::Gate, layer: Some(0), expert: Some(2) };
    assert_says(&checkpoint.matrix(none).unwrap_err().to_string(), &["experts.2", "missing"]);
}

#[test]
fn shards_are_one_checkpoint() {
    let directory = directory();
    let path = directory.path();
    let whole = Checkpoint::open(path).unwrap();
    let all = tensors(&config(&[]));
    let id = MatrixId { kind: MatrixKind::Value, layer: Some(1), expert: None };
    let expected = whole.read_matrix(id).unwrap();
    fs::remove_file(path.join("model.safetensors")).unwrap();
    let (first, second) = all.split_at(7);
    let index = |change: &dyn Fn(&mut serde_json::Map<String, Value>)| {
        let mut map = serde_json::Map::new();
        map.extend(first.iter().map(|(name, _)| (name.clone(), json!("a-1.safetensors"))));
        map.extend(second.iter().map(|(name, _)| (name.clone(), json!("b_2.safetensors"))));
        change(&mut map);
        let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
        fs::write(path.join("model.safetensors.index.json"), index.to_string()).unwrap();
    };
    index(&|_| {});
    fs::write(path.join("a-1.safetensors"), file(first)).unwrap();
    assert_says(&message(path), &["b_2.safetensors", "cannot open"]);
    fs::write(path.join("b_2.safetensors"), file(second)).unwrap();
    let sharded = Checkpoint::open(path).unwrap();
    assert_eq!(sharded.read_matrix(id).unwrap(), expected);
    assert_eq!(sharded.files().count(), 2);

    let key = "model.norm.weight";
    index(&|map| map[key] = json!("a-1.safetensors"));
    assert_says(&message(path), &["a-1.safetensors", key, "missing"]);
    index(&|map| drop(map.remove(key)));
    assert_says(&message(path), &["index.json", key, "missing"]);
    for outside in
        ["../b.safetensors", "/etc/passwd", "b.bin", "", ".safetensors", "c:\\a.safetensors"]
    {
        index(&|map| map[key] = json!(outside));
        assert_says(&message(path), &["weight_map: model.norm.weight", "plain name"]);
    }
    index(&|_| {});
    let mut twice = second.to_vec();
    twice.push(first[0].clone());
    fs::write(path.join("b_2.safetensors"), file(&twice)).unwrap();
    assert_says(&message(path), &["b_2.safetensors", &first[0].0, "no other file"]);
}

#[test]
fn what_is_no_checkpoint_is_said_to_be_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    assert_says(&message(path), &["not a Hugging Face checkpoint", "no `config.json`"]);
    assert_says(&message(&path.join("nowhere")), &["no such directory"]);
    fs::write(path.join("config.json"), config(&[]).to_string()).unwrap();
    assert_says(&message(&path.join("config.json")), &["it is a file"]);
    assert_says(&message(path), &["neither `model.safetensors`"]);
    fs::write(path.join("pytorch_model.bin"), "").unwrap();
    assert_says(&message(path), &["pytorch_model.bin", "only safetensors"]);
    fs::create_dir(path.join("model.safetensors")).unwrap();
    assert_says(&message(path), &["model.safetensors", "not a regular file"]);
}

/// Replaces a file with a named pipe that has no writer.
#[cfg(unix)]
fn pipe(path: &Path) {
    fs::remove_file(path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Returns the error of an open that must fail without blocking.
#[cfg(unix)]
fn refused_at_once(open: impl FnOnce() -> String + Send + 'static) -> String {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || drop(sender.send(open())));
    receiver.recv_timeout(std::time::Duration::from_secs(60)).expect("it waits for a writer")
}

#[cfg(unix)]
#[test]
fn pipes_are_no_files() {
    for name in ["config.json", "model.safetensors"] {
        let directory = directory();
        let path = directory.path().to_owned();
        pipe(&path.join(name));
        let said = refused_at_once(move || message(&path));
        assert_says(&said, &[name, "not a regular file"]);
    }
    let directory = directory();
    let path = directory.path().join("model.safetensors");
    pipe(&path);
    let open = move || Store::open(&path).expect_err("it is no store").to_string();
    assert_says(&refused_at_once(open), &["model.safetensors", "not a regular file"]);
}

#[test]
fn tensors_must_fit_the_configuration() {
    let directory = directory();
    let path = directory.path().join("model.safetensors");
    let sound = tensors(&config(&[]));
    let with = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = sound.clone();
        change(&mut tensors);
        fs::write(&path, file(&tensors)).unwrap();
        message(directory.path())
    };
    assert_says(&with(&|t| drop(t.remove(3))), &[&sound[3].0, "missing"]);
    let extra = "model.layers.0.mlp.shared_expert.up_proj.weight";
    let text = with(&|t| t.push((extra.into(), vec![1])));
    assert_says(&text, &["1 tensors have no place", extra]);
    let text = with(&|t| t[0].1.reverse());
    assert_says(&text, &["embed_tokens", "at byte", "shape [6, 4]", "[4, 6]"]);
    let text = with(&|t| t[1].1 = vec![24]);
    assert_says(&text, &["tensor `lm_head.weight`", "shape [6, 4]", "[24]"]);
}

#[test]
fn a_tied_head_may_be_repeated_but_not_differ() {
    let directory = directory();
    let tied = config(&[("tie_word_embeddings", json!(true))]);
    fs::write(directory.path().join("config.json"), tied.to_string()).unwrap();
    let path = directory.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    assert!(Checkpoint::open(directory.path()).is_ok(), "embedding and head count alike");
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + header + 2] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_says(&message(directory.path()), &["lm_head.weight", "tie_word_embeddings"]);
}

#[test]
fn weights_must_be_finite() {
    let directory = directory();
    let path = directory.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let at = 8 + header + 4 * 5;
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        bytes[at..at + 4].copy_from_slice(&bad.to_le_bytes());
        fs::write(&path, &bytes).unwrap();
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        let id = MatrixId { kind: MatrixKind::Embedding, layer: None, expert: None };
        let text = checkpoint.read_matrix(id).unwrap_err().to_string();
        assert_says(&text, &["embed_tokens", "element 5", "not a finite number"]);
    }
}

#[test]
fn a_changed_file_is_noticed() {
    let directory = directory();
    let path = directory.path().join("model.safetensors");
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    checkpoint.check_unchanged().unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(checkpoint.weight_bytes() - 4).unwrap();
    assert!(matches!(checkpoint.check_unchanged(), Err(ImportError::Changed { .. })));
    let last = FloatId { kind: FloatKind::FinalNorm, layer: None };
    assert!(matches!(checkpoint.read_float(last), Err(ImportError::Changed { .. })));
}

#[test]
fn the_hash_is_of_the_contents() {
    let (one, two) = (directory(), directory());
    let hash = |directory: &tempfile::TempDir| {
        let mut seen = 0;
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        let hash = checkpoint.source_hash(&mut |bytes| {
            seen += bytes;
            ControlFlow::Continue(())
        });
        assert_eq!(seen, checkpoint.weight_bytes());
        hash.unwrap()
    };
    assert_eq!(hash(&one), hash(&two));
    fs::write(two.path().join("tokenizer.json"), "{}").unwrap();
    assert_ne!(hash(&one), hash(&two));
    let path = one.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let before = hash(&one);
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_ne!(hash(&one), before);
    let stopped = Checkpoint::open(one.path()).unwrap();
    let stopped = stopped.source_hash(&mut |_| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(ImportError::Cancelled)));
}

fn parse(bytes: &[u8]) -> Result<SafetensorsHeader, ImportError> {
    let length = bytes.len() as u64;
    let prefix: [u8; 8] = std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0));
    let header = header_length("m.safetensors", prefix, length)? as usize;
    SafetensorsHeader::parse("m.safetensors", &bytes[8..8 + header], length)
}

/// Malformed headers: name, header, size of the data, and expected part of the error.
const MALFORMED: &[(&str, &str, usize, &str)] = &[
    ("no object", r#"[]"#, 0, "expected `{`"),
    ("space first", r#" {}"#, 0, "expected `{`"),
    ("nothing but spaces", r#"  "#, 0, "expected `{`"),
    ("text after", r#"{}x"#, 0, "trailing"),
    ("cut short", r#"{"a":"#, 0, "EOF"),
    (
        "same name",
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
        8,
        "duplicate name `a`",
    ),
    ("metadata twice", r#"{"__metadata__":{},"__metadata__":{}}"#, 0, "duplicate name"),
    ("metadata key twice", r#"{"__metadata__":{"k":"1","k":"2"}}"#, 0, "duplicate key `k`"),
    ("metadata no text", r#"{"__metadata__":{"k":1}}"#, 0, "expected a string"),
    ("tensor no object", r#"{"a":7}"#, 4, "invalid type"),
    (
        "field twice",
        r#"{"a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}}"#,
        4,
        "duplicate field",
    ),
    (
        "field unknown",
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}}"#,
        4,
        "unknown field",
    ),
    ("field missing", r#"{"a":{"dtype":"F32","data_offsets":[0,4]}}"#, 4, "missing field"),
    ("one offset", r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}}"#, 4, "length 1"),
    ("three offsets", r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}}"#, 4, "trailing"),
    ("negative", r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, 4, "invalid value"),
    (
        "fraction",
        r#"{"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}}"#,
        4,
        "floating point",
    ),
    (
        "above u64",
        r#"{"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]}}"#,
        4,
        "invalid type",
    ),
    (
        "type unknown",
        r#"{"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}}"#,
        4,
        "of type F8_E4M3",
    ),
    (
        "type in small letters",
        r#"{"a":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}}"#,
        4,
        "of type f32",
    ),
    (
        "too many dimensions",
        r#"{"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}}"#,
        4,
        "dimensions",
    ),
    (
        "product overflows",
        r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}"#,
        4,
        "shape",
    ),
    (
        "bytes overflow",
        r#"{"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,4]}}"#,
        4,
        "shape",
    ),
    ("no elements", r#"{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#, 0, "shape"),
    (
        "no elements inside another",
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[0],"data_offsets":[2,2]}}"#,
        4,
        "shape",
    ),
    (
        "backwards",
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#,
        4,
        "4 bytes for F32",
    ),
    (
        "too short",
        r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#,
        4,
        "8 bytes for F32 [2]",
    ),
    (
        "too long",
        r#"{"a":{"dtype":"F16","shape":[2],"data_offsets":[0,8]}}"#,
        8,
        "4 bytes for F16 [2]",
    ),
    ("gap before", r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#, 8, "a start at 0"),
    (
        "gap between",
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}"#,
        12,
        "a start at 4",
    ),
    (
        "overlap",
        r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
        8,
        "a start at 8",
    ),
    (
        "same place",
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
        4,
        "a start at 4",
    ),
    (
        "beyond the end",
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
        3,
        "to the file's end",
    ),
    (
        "far beyond the end",
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551611,18446744073709551615]}}"#,
        4,
        "expected",
    ),
    ("bytes after", r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 5, "1 more bytes"),
    ("data of nobody", r#"{}"#, 1, "1 more bytes"),
];

#[test]
fn malformed_headers_are_refused() {
    for (name, header, data, expected) in MALFORMED {
        let error = parse(&raw_file(header, &vec![0; *data])).expect_err(name).to_string();
        assert!(error.contains(expected), "{name}: no `{expected}` in: {error}");
        assert!(error.starts_with("m.safetensors"), "{name}: {error}");
    }
    let deep = format!("{{\"a\":{}", "[".repeat(100_000));
    assert!(parse(&raw_file(&deep, &[])).is_err(), "deep");
}

#[test]
fn header_lengths_are_checked_against_the_file() {
    for (length, file, refused) in [
        (0, 100, true),
        (1, 100, true),
        (2, 9, true),
        (2, 10, false),
        (92, 100, false),
        (93, 100, true),
        (33_554_432, 200_000_000, false),
        (33_554_433, 200_000_000, true),
        (u64::MAX, u64::MAX, true),
    ] {
        let found = header_length("m", u64::to_le_bytes(length), file);
        assert_eq!(found.is_err(), refused, "{length} of {file}: {found:?}");
    }
}

#[test]
fn padding_after_the_header_is_allowed() {
    let sound = file(&tensors(&config(&[])));
    let length = u64::from_le_bytes(sound[..8].try_into().unwrap()) as usize;
    let header = std::str::from_utf8(&sound[8..8 + length]).unwrap();
    let padded = raw_file(&format!("{header}     "), &sound[8 + length..]);
    let (a, b) = (parse(&sound).unwrap(), parse(&padded).unwrap());
    assert_eq!(a.tensors.len(), b.tensors.len());
    assert_eq!(a.tensors[1].1.offset + 5, b.tensors[1].1.offset);
}

/// Checks that the tensors of an accepted header cover the file without gaps.
fn assert_covers(header: &SafetensorsHeader, file: &[u8]) {
    let end = header.tensors.last().map_or(file.len() as u64, |(_, t)| t.offset + t.length);
    assert_eq!(end, file.len() as u64);
    for pair in header.tensors.windows(2) {
        assert_eq!(pair[0].1.offset + pair[0].1.length, pair[1].1.offset);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn mutated_files_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = file(&tensors(&config(&[]))[..4]);
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(header) = parse(&bytes) {
            assert_covers(&header, &bytes);
        }
    }

    #[test]
    fn numbers_of_a_header_never_overflow(
        begin in prop_oneof![0u64..20, any::<u64>()],
        end in prop_oneof![0u64..20, any::<u64>()],
        shape in prop::collection::vec(prop_oneof![0u64..4, any::<u64>()], 0..10),
        data in 0usize..40,
    ) {
        let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]});
        let bytes = raw_file(&json!({"a": entry}).to_string(), &vec![0; data]);
        if let Ok(header) = parse(&bytes) {
            assert_covers(&header, &bytes);
            prop_assert_eq!(header.tensors[0].1.length, data as u64);
        }
    }

    #[test]
    fn mutated_configurations_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = config(&[("mlp_only_layers", json!([1]))]).to_string().into_bytes();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(config) = ModelConfig::from_json("config.json", &bytes) {
            prop_assert!(ModelShape::new(&config).weights() > 0);
        }
    }

    #[test]
    fn any_value_of_any_key_is_read_or_refused(
        key in prop::sample::select(vec![
            "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim",
            "num_key_value_heads", "num_experts", "num_experts_per_tok", "moe_intermediate_size",
            "decoder_sparse_step", "mlp_only_layers", "rope_theta", "rms_norm_eps", "eos_token_id",
            "rope_scaling", "layer_types", "max_position_embeddings", "intermediate_size",
        ]),
        value in prop_oneof![
            any::<i64>().prop_map(|n| json!(n)),
            (0i64..300).prop_map(|n| json!(n)),
            any::<f64>().prop_map(|n| json!(n)),
            ".{0,8}".prop_map(|s| json!(s)),
            prop::collection::vec(any::<i32>(), 0..4).prop_map(|v| json!(v)),
            Just(json!(null)), Just(json!({})), Just(json!(true)),
        ],
    ) {
        // Sizes near the limits would create a shape of millions of experts, so the configuration is only
        // parsed.
        let text = config(&[(key, value)]).to_string();
        let _ = ModelConfig::from_json("config.json", text.as_bytes());
    }
}
