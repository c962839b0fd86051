//! Stores whose experts use rotated inputs of `down`: conversion, inference, and selection by trial.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nestling_convert::calibrate::CalibrationTokens;
use nestling_convert::convert::{
    Calibration, ConvertError, ConvertOptions, convert, convert_with_best_rotation,
};
use nestling_core::cancel::CancelToken;
use nestling_core::weights::ActivationMode;
use nestling_experts::expert::{ExpertSource, StoreSource};
use nestling_formats::Level;
use nestling_formats::nested::InputTransform;
use nestling_formats::store::Store;
use nestling_import::checkpoint::Checkpoint;
use nestling_runtime::model::RunnerOptions;
use serde_json::json;

use nestling_testkit::runners::{all_logits, runners, some_tokens};

const VOCAB_SIZE: usize = 96;
const HIDDEN: usize = 48;
/// Two whole groups, so that they can be rotated.
const INTERMEDIATE: usize = 64;
const EXPERTS: usize = 4;

/// Writes a checkpoint of two layers with seeded random weights.
fn checkpoint(folder: &Path) -> PathBuf {
    let folder = folder.join("checkpoint");
    fs::create_dir_all(&folder).unwrap();
    let config = json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
        "vocab_size": VOCAB_SIZE, "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
        "moe_intermediate_size": INTERMEDIATE, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "num_experts": EXPERTS, "num_experts_per_tok": 2,
        "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "attention_bias": false, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e4,
        "max_position_embeddings": 256, "tie_word_embeddings": true, "torch_dtype": "float32",
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    fs::write(folder.join("tokenizer.json"), "{}").unwrap();
    let mut tensors: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".into(), vec![VOCAB_SIZE, HIDDEN]),
        ("model.norm.weight".into(), vec![HIDDEN]),
    ];
    for layer in 0..2 {
        let mut add = |name: &str, shape: &[usize]| {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape.to_vec()));
        };
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            add(norm, &[HIDDEN]);
        }
        for norm in ["self_attn.q_norm", "self_attn.k_norm"] {
            add(norm, &[16]);
        }
        for (name, rows, cols) in
            [("q", 64, HIDDEN), ("k", 32, HIDDEN), ("v", 32, HIDDEN), ("o", HIDDEN, 64)]
        {
            add(&format!("self_attn.{name}_proj"), &[rows, cols]);
        }
        add("mlp.gate", &[EXPERTS, HIDDEN]);
        for expert in 0..EXPERTS {
            let name = |kind: &str| format!("mlp.experts.{expert}.{kind}_proj");
            add(&name("gate"), &[INTERMEDIATE, HIDDEN]);
            add(&name("up"), &[INTERMEDIATE, HIDDEN]);
            add(&name("down"), &[HIDDEN, INTERMEDIATE]);
        }
    }
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (seed, (name, shape)) in (1u64..).zip(tensors) {
        let begin = data.len();
        let numbers = some_tokens(shape.iter().product(), 2001, seed);
        let scale = 2.0 / (shape[shape.len() - 1] as f32).sqrt();
        data.extend(numbers.into_iter().flat_map(|number| {
            let value = if shape.len() == 1 { 1.0 } else { scale * (number as f32 / 1000.0 - 1.0) };
            value.to_le_bytes()
        }));
        let offsets = [begin, data.len()];
        header.insert(name, json!({"dtype": "F32", "shape": shape, "data_offsets": offsets}));
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    fs::write(folder.join("model.safetensors"), file).unwrap();
    folder
}

fn options(rotation: InputTransform) -> ConvertOptions {
    let tokens = CalibrationTokens::with_length(some_tokens(600, VOCAB_SIZE, 7), 64).unwrap();
    let mut options = ConvertOptions::default();
    (options.calibration, options.rotation) = (Calibration::Tokens(tokens), rotation);
    options.threads = 2;
    options
}

fn is_rotated(path: &Path) -> bool {
    let store = Store::open(path).unwrap();
    let matrices = store.index().groups().iter().flat_map(|group| &group.matrices);
    let mut codecs = matrices.filter_map(|matrix| store.index().codec(matrix));
    codecs.any(|codec| codec.inputs() == InputTransform::Hadamard)
}

#[test]
fn a_rotated_store_has_the_same_bits_on_every_encoder_and_level() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(checkpoint(folder.path())).unwrap();
    let tokens = some_tokens(20, VOCAB_SIZE, 11);
    let logits = |rotation| {
        let path = folder.path().join(format!("{rotation:?}.nest"));
        convert(&checkpoint, &path, &options(rotation), &CancelToken::new(), &mut |_| {}).unwrap();
        assert_eq!(is_rotated(&path), rotation == InputTransform::Hadamard);
        let store = Arc::new(Store::open(&path).unwrap());
        let source: Arc<dyn ExpertSource> = Arc::new(StoreSource::owned(store, None).unwrap());
        let mut at_levels = Vec::new();
        for activations in [ActivationMode::Int8, ActivationMode::Float] {
            let options = RunnerOptions { activations, ..RunnerOptions::default() };
            let mut all = runners(&source, &options);
            for level in Level::ALL {
                let (first, rest) = all.split_first_mut().unwrap();
                let expected = all_logits(&mut *first.1, &tokens, level, 20);
                for (name, runner) in rest {
                    let found = all_logits(&mut **runner, &tokens, level, 20);
                    assert!(found == expected, "{rotation:?} {activations:?} {level} {name}");
                }
                at_levels.push(expected);
            }
        }
        at_levels
    };
    let (plain, rotated) = (logits(InputTransform::None), logits(InputTransform::Hadamard));
    assert!(plain.iter().zip(&rotated).all(|(plain, rotated)| plain != rotated));
    // At level 8 with floats, only rounding differs, and experts where a router is nearly tied.
    let (plain, rotated) = (&plain[9], &rotated[9]);
    let size = plain.iter().map(|logit| logit.abs()).fold(0.0, f32::max);
    let apart = |(plain, rotated): (&[f32], &[f32])| {
        plain.iter().zip(rotated).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    let rows = plain.chunks(VOCAB_SIZE).zip(rotated.chunks(VOCAB_SIZE));
    let apart: Vec<f32> = rows.map(apart).collect();
    let tied = apart.iter().filter(|apart| **apart >= 0.05 * size).count();
    assert!(tied <= 1, "{apart:?} of {size}");
}

#[test]
fn rotation_on_trial_keeps_the_store_that_diverges_less() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(checkpoint(folder.path())).unwrap();
    let path = folder.path().join("best.nest");
    let (go, options) = (CancelToken::new(), options(InputTransform::None));
    let (report, trial) =
        convert_with_best_rotation(&checkpoint, &path, &options, &go, &mut |_| {}).unwrap();
    assert_eq!(trial.levels, [Level::L2, Level::L3, Level::L4]);
    assert_eq!(trial.tokens, 74, "an eighth of the text, less the first token");
    assert!(trial.with.iter().chain(&trial.without).all(|kl| *kl > 0.0));
    let product: f64 = trial.with.iter().zip(&trial.without).map(|(on, off)| on / off).product();
    assert!((trial.factor() - product.cbrt()).abs() < 1e-9);
    assert_eq!(trial.is_accepted(), product < 1.0);
    assert_eq!(is_rotated(&path), trial.is_accepted());
    assert_eq!(Store::open(&path).unwrap().id(), report.id);
    let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["best.nest", "checkpoint"], "nothing else is left");
}

#[test]
fn without_a_text_there_is_no_trial() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(checkpoint(folder.path())).unwrap();
    let path = folder.path().join("best.nest");
    let options = ConvertOptions::default();
    let go = CancelToken::new();
    let found = convert_with_best_rotation(&checkpoint, &path, &options, &go, &mut |_| {});
    assert!(matches!(found, Err(ConvertError::Refused { .. })));
}
