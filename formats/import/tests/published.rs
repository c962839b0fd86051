//! Configurations in the shape of published models can be read, and give the expected numbers of parameters.
#![expect(clippy::unwrap_used, reason = "a test that finds no file has failed")]

use std::path::Path;

use nestling_import::{Architecture, ImportError, ModelConfig, ModelShape, names};
use serde_json::Value;

/// File name, and the number of parameters in billions: the publisher's or one counted by hand, as
/// `data/published/README.md` says.
const MODELS: [(&str, f64); 48] = [
    ("DeepSeek-V2-Lite", 15.7),
    ("DeepSeek-V3", 671.0),
    ("DeepSeek-V3.2", 671.0),
    ("ERNIE-4.5-21B-A3B-PT", 21.8),
    ("GLM-4.5-Air", 106.85),
    ("GLM-4.7", 355.0),
    ("GLM-4.7-Flash", 29.94),
    ("GLM-5.3", 743.2),
    ("Hunyuan-A13B-Instruct", 80.39),
    ("K-EXAONE-236B-A23B", 236.57),
    ("Kimi-K2-Instruct", 1026.4),
    ("LFM2-1.2B", 1.17),
    ("LFM2-8B-A1B", 8.34),
    ("Laguna-S-2.1", 117.6),
    ("Ling-mini-2.0", 16.26),
    ("Llama-3.3-70B-Instruct", 70.6),
    ("MiniMax-M2", 230.0),
    ("Mistral-7B-v0.1", 7.24),
    ("Mixtral-8x7B-Instruct-v0.1", 46.7),
    ("Moonlight-16B-A3B", 16.0),
    ("OLMoE-1B-7B-0924", 6.92),
    ("Qwen1.5-MoE-A2.7B", 14.3),
    ("Qwen2-57B-A14B", 57.4),
    ("Qwen2.5-7B-Instruct", 7.61),
    ("Qwen3-235B-A22B", 235.0),
    ("Qwen3-30B-A3B", 30.5),
    ("Qwen3-8B", 8.19),
    ("Qwen3-Coder-30B-A3B-Instruct", 30.5),
    ("Qwen3-Next-80B-A3B-Instruct", 80.0),
    ("Qwen3-Omni-30B-A3B-Instruct", 30.5),
    ("Qwen3-VL-235B-A22B-Thinking", 235.0),
    ("Qwen3.5-35B-A3B", 35.0),
    ("Qwen3.6-35B-A3B", 35.0),
    ("Ring-mini-2.0", 16.26),
    ("SmolLM2-135M-Instruct", 0.1345),
    ("Solar-Open-100B", 102.6),
    ("Trinity-Mini", 26.12),
    ("dots.llm1.inst", 142.0),
    ("gemma-4-26B-A4B", 25.2),
    ("gpt-oss-120b", 116.83),
    ("gpt-oss-20b", 20.91),
    ("granite-3.0-1b-a400m-instruct", 1.33),
    ("granite-3.0-3b-a800m-instruct", 3.30),
    ("granite-3.1-1b-a400m-instruct", 1.33),
    ("granite-3.1-3b-a800m-instruct", 3.30),
    ("granite-4.0-h-350m", 0.3403),
    ("granite-4.0-h-tiny", 6.94),
    ("nemotron-3-nano-30b-a3b", 31.58),
];

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/published")
}

fn read(name: &str) -> Result<ModelConfig, ImportError> {
    let json = std::fs::read(folder().join(format!("{name}.json"))).unwrap();
    ModelConfig::from_json(&format!("{name}/config.json"), &json)
}

#[test]
fn every_file_is_listed() {
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "json"));
    let mut names: Vec<_> =
        files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    assert_eq!(names, MODELS.map(|(name, ..)| name.to_owned()));
}

#[test]
fn weights_are_as_many_as_published() {
    for (name, billions) in MODELS {
        let config = read(name).unwrap();
        let found = ModelShape::new(&config).weights() as f64 / 1e9;
        let off = (found / billions - 1.0).abs();
        assert!(off < 0.01, "{name}: {found:.3} billion weights, expected: {billions}");
    }
}

/// A checkpoint of the text part alone gives the same model. Its configuration is `text_config`, and tensor
/// names lack `language_model.`.
#[test]
fn text_parts_alone_are_the_same_models() {
    for (name, class, architecture) in [
        ("gemma-4-26B-A4B", "Gemma4ForCausalLM", Architecture::Gemma4Text),
        ("Qwen3.5-35B-A3B", "Qwen3_5MoeForCausalLM", Architecture::Qwen35MoeText),
        ("Qwen3.6-35B-A3B", "Qwen3_5MoeForCausalLM", Architecture::Qwen35MoeText),
    ] {
        let whole = read(name).unwrap();
        let json = std::fs::read(folder().join(format!("{name}.json"))).unwrap();
        let mut json: Value = serde_json::from_slice(&json).unwrap();
        let mut text = json["text_config"].take();
        text["architectures"] = serde_json::json!([class]);
        let alone = ModelConfig::from_json("config.json", text.to_string().as_bytes()).unwrap();
        let same = ModelConfig {
            architecture,
            eos_token_ids: alone.eos_token_ids.clone(),
            ..whole.clone()
        };
        assert_eq!(alone, same, "{name}");
        for matrix in ModelShape::new(&whole).matrices {
            let of = |config| names::matrix_tensors(config, matrix.id);
            let mut expected = of(&whole);
            assert!(!expected.is_empty(), "{name} {:?}", matrix.id);
            for slice in &mut expected {
                slice.name = slice.name.replacen("language_model.", "", 1);
            }
            assert_eq!(of(&alone), expected, "{name}");
        }
        for float in ModelShape::new(&whole).floats {
            let mut expected = names::float_tensor(&whole, float.id).unwrap();
            expected.name = expected.name.replacen("language_model.", "", 1);
            assert_eq!(names::float_tensor(&alone, float.id), Some(expected), "{name}");
        }
        text["model_type"] = "gemma4_vision".into();
        let refused = ModelConfig::from_json("config.json", text.to_string().as_bytes());
        assert!(refused.unwrap_err().to_string().contains("gemma4_text"));
    }
}

/// transformers 5 writes the heads of global layers per layer number, instead of keys for all of them.
#[test]
fn heads_of_layers_are_read_by_number() {
    let json = std::fs::read(folder().join("gemma-4-26B-A4B.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let parse = |json: &Value| ModelConfig::from_json("config.json", json.to_string().as_bytes());
    let whole = parse(&json).unwrap();
    let mut saved = json.clone();
    let text = saved["text_config"].as_object_mut().unwrap();
    for key in ["global_head_dim", "num_global_key_value_heads"] {
        text.remove(key).unwrap();
    }
    let own = serde_json::json!({"head_dim": 512, "num_key_value_heads": 2});
    let global = |name: fn(usize) -> String| -> Value {
        let layers = (0..30).filter(|layer| layer % 6 == 5);
        Value::Object(layers.map(|layer| (name(layer), own.clone())).collect())
    };
    text.insert("per_layer_config".into(), global(|layer| layer.to_string()));
    assert_eq!(parse(&saved).unwrap(), whole);
    // All layer numbers may be zero-padded to the same length.
    let mut padded = saved.clone();
    padded["text_config"]["per_layer_config"] = global(|layer| format!("{layer:02}"));
    assert_eq!(parse(&padded).unwrap(), whole);
    padded["text_config"]["per_layer_config"]["5"] = own.clone();
    assert!(parse(&padded).unwrap_err().to_string().contains("per_layer_config"));
    // The old keys may repeat the same values.
    let mut both = saved.clone();
    both["text_config"]["global_head_dim"] = 512.into();
    assert_eq!(parse(&both).unwrap(), whole);
    both["text_config"]["global_head_dim"] = 256.into();
    assert!(parse(&both).unwrap_err().to_string().contains("`global_head_dim`"));
    // Layers of one kind must have equal heads, and other keys are rejected.
    for (layer, key, value) in
        [("5", "head_dim", 256), ("4", "head_dim", 512), ("99", "head_dim", 512), ("5", "other", 1)]
    {
        let mut json = saved.clone();
        json["text_config"]["per_layer_config"][layer][key] = value.into();
        let error = parse(&json).unwrap_err().to_string();
        assert!(error.contains("per_layer_config"), "{error}");
    }
}
