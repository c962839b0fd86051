//! Checkpoints as saved by transformers 5: other names, unfused experts, per-layer head sizes.
//!
//! They give the same bits as the published layout.

use std::fs;
use std::path::Path;

use nestling_cpu::Cpu;
use nestling_formats::Level;
use nestling_runtime::model::RunnerOptions;
use serde_json::{Map, Value, json};

use super::harness::directory;
use nestling_testkit::runners::{all_logits, checkpoint, runner, some_tokens};

/// Name, shape and bytes of a tensor. All tensors of a file have the same float type.
type Tensor = (String, Vec<u64>, Vec<u8>);

/// Replaces each tensor of a file by the result of `change`.
fn changed(file: &[u8], change: &dyn Fn(Tensor) -> Vec<Tensor>) -> Vec<u8> {
    let (length, rest) = file.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&rest[..length]).unwrap();
    let (mut names, mut data) = (Map::new(), Vec::new());
    for (name, tensor) in header.into_iter().filter(|(name, _)| name != "__metadata__") {
        let offset = |at: usize| length + tensor["data_offsets"][at].as_u64().unwrap() as usize;
        let bytes = rest[offset(0)..offset(1)].to_vec();
        let shape = serde_json::from_value(tensor["shape"].clone()).unwrap();
        for (name, shape, bytes) in change((name, shape, bytes)) {
            let offsets = [data.len(), data.len() + bytes.len()];
            let dtype = &tensor["dtype"];
            data.extend(bytes);
            names.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
        }
    }
    let header = Value::Object(names).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}

/// Splits fused experts into one tensor per expert and matrix, as saved by a model that was not loaded from
/// fused ones.
fn experts_apart((name, shape, bytes): Tensor) -> Vec<Tensor> {
    let Some((layer, part)) = name.split_once(".experts.") else {
        return vec![(name, shape, bytes)];
    };
    let [experts, rows, cols] = shape[..] else { panic!("{name} is not of all experts") };
    let parts = match part {
        "gate_up_proj" => &["gate_proj", "up_proj"][..],
        "down_proj" => &["down_proj"],
        _ => panic!("{name}"),
    };
    let count = experts as usize * parts.len();
    let rows = rows / parts.len() as u64;
    let matrices = bytes.chunks(bytes.len() / count).enumerate().map(|(at, bytes)| {
        let (expert, part) = (at / parts.len(), parts[at % parts.len()]);
        (format!("{layer}.experts.{expert}.{part}.weight"), vec![rows, cols], bytes.to_vec())
    });
    matrices.collect()
}

/// Keeps only the text part, under its standalone names.
fn renamed((name, shape, bytes): Tensor) -> Vec<Tensor> {
    let alone = name.replacen("model.language_model.", "model.", 1);
    let is_text = alone != name || name == "lm_head.weight";
    if is_text { vec![(alone, shape, bytes)] } else { Vec::new() }
}

/// Keeps only the text part, under its names in the whole model.
fn kept((name, shape, bytes): Tensor) -> Vec<Tensor> {
    let is_text = name.starts_with("model.language_model.") || name == "lm_head.weight";
    if is_text { vec![(name, shape, bytes)] } else { Vec::new() }
}

/// Checks that a family's checkpoint gives the same output after changes to tensors and configuration.
fn computes_the_same(
    family: &str,
    change: &dyn Fn(Tensor) -> Vec<Tensor>,
    configure: &dyn Fn(&mut Value),
) {
    let folder = tempfile::tempdir().unwrap();
    let source = directory(family);
    let mut weights = Vec::new();
    for entry in fs::read_dir(&source).unwrap() {
        let path = entry.unwrap().path();
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("safetensors") => weights.push(path),
            _ if path.ends_with("model.safetensors.index.json") => {}
            _ => drop(fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap()),
        }
    }
    write_weights(&weights, change, folder.path());
    let path = folder.path().join("config.json");
    let mut config = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    configure(&mut config);
    fs::write(path, config.to_string()).unwrap();
    let logits = [source, folder.path().into()].map(|directory| {
        let source = checkpoint(&directory);
        let tokens = some_tokens(70, source.config().vocab_size, 9);
        let mut runner = runner(Cpu::new(2), &source, &RunnerOptions::default());
        all_logits(&mut runner, &tokens, Level::L8, 512)
    });
    assert!(logits[0] == logits[1], "{family}");
}

/// Writes changed weight files with a matching index.
fn write_weights(
    files: &[std::path::PathBuf],
    change: &dyn Fn(Tensor) -> Vec<Tensor>,
    folder: &Path,
) {
    let mut index = Map::new();
    for path in files {
        let bytes = changed(&fs::read(path).unwrap(), change);
        let name = path.file_name().unwrap().to_str().unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        index.extend(header.into_iter().map(|(tensor, _)| (tensor, name.into())));
        fs::write(folder.join(name), bytes).unwrap();
    }
    let index = json!({"metadata": {}, "weight_map": index});
    fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

/// Reduces the configuration to the text part of Qwen3.5.
fn text_alone(config: &mut Value) {
    *config = config["text_config"].take();
    config["architectures"] = json!(["Qwen3_5MoeForCausalLM"]);
}

/// The form that `AutoModelForCausalLM` loads from the whole model and saves.
#[test]
fn text_parts_keep_the_names_of_the_whole_model() {
    computes_the_same("qwen3-5-moe", &kept, &text_alone);
}

#[test]
fn experts_are_apart_in_the_whole_model() {
    computes_the_same("qwen3-5-moe", &experts_apart, &|_| {});
}

#[test]
fn experts_are_apart_in_text_parts() {
    let apart = |tensor| renamed(tensor).into_iter().flat_map(experts_apart).collect();
    computes_the_same("qwen3-5-moe", &apart, &text_alone);
    let kept_apart = |tensor| kept(tensor).into_iter().flat_map(experts_apart).collect();
    computes_the_same("qwen3-5-moe", &kept_apart, &text_alone);
}

/// `config.json` as written by `save_pretrained` of transformers 5.23.
#[test]
fn gemma_4_says_heads_layer_by_layer() {
    computes_the_same("gemma4", &|tensor| vec![tensor], &|config| {
        let text = config["text_config"].as_object_mut().unwrap();
        let own = json!({
            "head_dim": text.remove("global_head_dim").unwrap(),
            "num_key_value_heads": text.remove("num_global_key_value_heads").unwrap(),
        });
        text.insert("per_layer_config".into(), json!({"1": own, "3": own}));
    });
}
