//! Checkpoints of the text part only, derived from whole models: the same bits.

use std::fs;
use std::path::Path;

use nestling_cpu::Cpu;
use nestling_formats::Level;
use nestling_runtime::model::RunnerOptions;
use serde_json::{Map, Value};

use super::harness::directory;
use nestling_testkit::runners::{all_logits, checkpoint, runner, some_tokens};

/// Removes the tensors of other parts, and `language_model.` from the names.
fn text_tensors(file: &[u8]) -> Vec<u8> {
    let (length, rest) = file.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&rest[..length]).unwrap();
    let (mut names, mut data) = (Map::new(), Vec::new());
    for (name, mut tensor) in header {
        let alone = name.replacen("model.language_model.", "model.", 1);
        if alone == name && name != "lm_head.weight" {
            continue;
        }
        let offset = |at: usize| length + tensor["data_offsets"][at].as_u64().unwrap() as usize;
        let bytes = &rest[offset(0)..offset(1)];
        tensor["data_offsets"] = serde_json::json!([data.len(), data.len() + bytes.len()]);
        data.extend_from_slice(bytes);
        names.insert(alone, tensor);
    }
    let header = Value::Object(names).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}

fn write_text_alone(name: &str, class: &str, folder: &Path) {
    let source = directory(name);
    for entry in fs::read_dir(&source).unwrap() {
        let entry = entry.unwrap();
        let (file, to) = (fs::read(entry.path()).unwrap(), folder.join(entry.file_name()));
        match entry.path().extension().and_then(|ending| ending.to_str()) {
            Some("safetensors") => fs::write(to, text_tensors(&file)).unwrap(),
            _ => fs::write(to, file).unwrap(),
        }
    }
    let read = |name: &str| -> Value {
        serde_json::from_slice(&fs::read(source.join(name)).unwrap()).unwrap()
    };
    let mut config = read("config.json")["text_config"].take();
    config["architectures"] = serde_json::json!([class]);
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let index_name = "model.safetensors.index.json";
    let mut index = read(index_name);
    let shards = index["weight_map"].as_object().unwrap().clone();
    let of_text = |name: &String| name.contains("language_model.") || name == "lm_head.weight";
    let shards = shards.into_iter().filter(|(name, _)| of_text(name));
    let renamed = shards.map(|(name, shard)| (name.replacen("language_model.", "", 1), shard));
    index["weight_map"] = Value::Object(renamed.collect());
    fs::write(folder.join(index_name), index.to_string()).unwrap();
}

fn is_the_same_model(name: &str, class: &str) {
    let folder = tempfile::tempdir().unwrap();
    write_text_alone(name, class, folder.path());
    let logits = [directory(name), folder.path().into()].map(|directory| {
        let source = checkpoint(&directory);
        let tokens = some_tokens(70, source.config().vocab_size, 9);
        let mut runner = runner(Cpu::new(2), &source, &RunnerOptions::default());
        all_logits(&mut runner, &tokens, Level::L8, 512)
    });
    assert!(logits[0] == logits[1], "{name}");
}

#[test]
fn gemma4() {
    is_the_same_model("gemma4", "Gemma4ForCausalLM");
}

#[test]
fn qwen3_5_moe() {
    is_the_same_model("qwen3-5-moe", "Qwen3_5MoeForCausalLM");
}
