//! Reading of files written by llama.cpp.

use std::fs;

use nestling_import::gguf::{GgufHeader, assets, config_json};
use nestling_import::{FeedForward, ImportError, ModelConfig, RopeScaling, TokenMixer};

use super::builder::Builder;

pub fn header(name: &str) -> GgufHeader {
    let bytes = fs::read(super::data(name)).unwrap();
    GgufHeader::parse(name, &bytes, bytes.len() as u64).unwrap()
}

#[test]
fn metadata_becomes_an_ordinary_configuration() {
    let header = header("qwen3-moe.gguf");
    let assets = assets(&header).unwrap();
    let names: Vec<&str> = assets.iter().map(|asset| asset.name.as_str()).collect();
    let expected =
        ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];
    assert_eq!(names, expected);
    let config = ModelConfig::from_json("config.json", &assets[0].bytes).unwrap();
    assert_eq!(config.hidden_size, 64);
    assert_eq!(config.num_hidden_layers, 2);
    assert_eq!(config.vocab_size, 512);
    assert_eq!(config.rms_norm_eps, 1e-6);
    assert!(config.router.unwrap().norm_topk_prob);
    assert!(!config.tie_word_embeddings);
    assert_eq!(config.bos_token_id, Some(0));
    let generation: serde_json::Value = serde_json::from_slice(&assets[1].bytes).unwrap();
    assert_eq!(generation["eos_token_id"], serde_json::json!([2, 0]));
    let tokenizer: serde_json::Value = serde_json::from_slice(&assets[3].bytes).unwrap();
    assert_eq!(tokenizer["eos_token"], "<|im_end|>");
    assert!(tokenizer["chat_template"].as_str().unwrap().contains("<|im_start|>"));
}

#[test]
fn tensors_lie_where_the_table_says() {
    let header = header("qwen3-moe.gguf");
    let find = |name: &str| header.tensors.iter().find(|tensor| tensor.name == name).unwrap();
    let experts = find("blk.0.ffn_gate_exps.weight");
    assert_eq!(experts.element.name(), "Q4_0");
    assert_eq!(experts.shape, [5, 32, 64]);
    assert_eq!(experts.length, 5 * 32 * 64 / 32 * 18);
    assert_eq!(find("output.weight").element.name(), "Q8_0");
    let last = header.tensors.last().unwrap();
    let length = fs::metadata(super::data("qwen3-moe.gguf")).unwrap().len();
    assert!(last.offset + last.length <= length && length - last.offset - last.length < 32);
}

#[test]
fn every_file_that_ends_early_is_refused() {
    let bytes = fs::read(super::data("qwen3-moe.gguf")).unwrap();
    let whole = GgufHeader::parse("whole", &bytes, bytes.len() as u64).unwrap();
    let front = usize::try_from(whole.data_offset).unwrap();
    assert!(front > 10_000);
    // The header is sufficient to locate all tensors.
    let headers = GgufHeader::parse("whole", &bytes[..front], bytes.len() as u64).unwrap();
    assert_eq!(headers, whole);
    for length in (0..front - 32).step_by(97) {
        let part = &bytes[..length];
        assert!(GgufHeader::parse("part", part, length as u64).is_err(), "{length}");
        assert!(GgufHeader::parse("part", part, bytes.len() as u64).is_err(), "{length}");
    }
    let error = GgufHeader::parse("cut", &bytes, bytes.len() as u64 - 5000).unwrap_err();
    assert!(error.to_string().contains("to the file's end"), "{error}");
}

#[test]
fn keys_of_gpt_oss_are_read_and_others_refused() {
    let bytes = fs::read(super::data("gpt-oss.gguf")).unwrap();
    let parse = |bytes: &[u8]| {
        let header = GgufHeader::parse("m.gguf", bytes, bytes.len() as u64).unwrap();
        config_json(&header)
    };
    let json: serde_json::Value = serde_json::from_slice(&parse(&bytes).unwrap()).unwrap();
    assert_eq!(json["sliding_window"], 20);
    assert_eq!(json["quantization_config"]["quant_method"], "mxfp4");
    assert_eq!(json["rope_scaling"]["truncate"], false);
    assert_eq!(json["rope_scaling"]["factor"], 8.0);
    let renamed = |from: &str, to: &str| {
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        let mut bytes = bytes.clone();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        parse(&bytes)
    };
    let unknown = renamed("gpt-oss.attention.sliding_window", "gpt-oss.attention.sliding_windox");
    let error = unknown.unwrap_err();
    assert!(
        matches!(&error, ImportError::UnknownOption { key, found, .. }
        if key == "gpt-oss.attention.sliding_windox" && found == "20"),
        "{error}"
    );
}

/// Files that are older than llama.cpp's group keys, of models with published groups.
#[test]
fn published_groups_stand_in_for_keys_that_older_files_have_not() {
    let latent = |experts: u32, width: u32, layers: u32, gating: u32, more: &[(&str, u32)]| {
        let keys = [
            ("block_count", layers),
            ("context_length", 64),
            ("embedding_length", width),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
            ("expert_count", experts),
            ("expert_used_count", 6),
            ("expert_feed_forward_length", 16),
            ("expert_gating_func", gating),
            ("attention.key_length", 16),
            ("attention.value_length", 16),
            ("feed_forward_length", 32),
            ("attention.kv_lora_rank", 16),
            ("leading_dense_block_count", 1),
            ("rope.dimension_count", 8),
        ];
        let groups = least("deepseek2", &[&keys[..], more].concat()).router.unwrap().groups;
        groups.map(|groups| (groups.n_group, groups.topk_group))
    };
    assert_eq!(latent(256, 7168, 61, 2, &[]), Some((8, 4)));
    assert_eq!(latent(160, 5120, 60, 1, &[]), Some((8, 3)));
    // Groups in a file take precedence.
    let own = [("expert_group_count", 4), ("expert_group_used_count", 2)];
    assert_eq!(latent(256, 7168, 61, 2, &own), Some((4, 2)));
    // Kimi-K2 has no groups, and unknown sizes have llama.cpp's default.
    assert_eq!(latent(384, 7168, 61, 2, &[]), None);
    assert_eq!(latent(256, 7168, 60, 2, &[]), None);
}

/// Returns the configuration of a file with the given integers and no other keys.
fn least(family: &str, keys: &[(&str, u32)]) -> ModelConfig {
    let add =
        |file: Builder, (key, value): &(&str, u32)| file.number(&format!("{family}.{key}"), *value);
    let file = keys.iter().fold(Builder::new().text("general.architecture", family), add);
    let file = file
        .float(&format!("{family}.attention.layer_norm_rms_epsilon"), 1e-6)
        .tensor("token_embd.weight", &[32, 2], 0, 0)
        .data(256);
    let bytes = file.bytes();
    let header = GgufHeader::parse("m.gguf", &bytes, bytes.len() as u64).unwrap();
    ModelConfig::from_json("config.json", &config_json(&header).unwrap()).unwrap()
}

/// Absent keys have llama.cpp's defaults, not those of `config.json`.
#[test]
fn absent_keys_have_no_defaults_of_config_json() {
    let common = [
        ("block_count", 2),
        ("context_length", 64),
        ("embedding_length", 32),
        ("attention.head_count", 2),
        ("expert_count", 4),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", 16),
        ("attention.key_length", 16),
        ("attention.value_length", 16),
    ];
    let latent = [
        ("attention.head_count_kv", 1),
        ("feed_forward_length", 32),
        ("attention.kv_lora_rank", 16),
        ("leading_dense_block_count", 1),
        ("rope.dimension_count", 8),
    ];
    for gating in [1, 2] {
        let keys = [&common[..], &latent, &[("expert_gating_func", gating)]].concat();
        let config = least("deepseek2", &keys);
        let router = config.router.unwrap();
        assert_eq!((router.scale, router.groups), (1.0, None));
        let TokenMixer::Latent(attention) = config.layers[0].mixer else { panic!("no latent") };
        assert_eq!(attention.q_lora_rank, None);
        let FeedForward::Moe { shared, .. } = config.layers[1].feed_forward else {
            panic!("dense")
        };
        assert_eq!(shared, None);
        assert_eq!((config.bos_token_id, config.eos_token_ids), (None, vec![]));
    }
    let own = [("attention.head_count_kv", 2), ("attention.sliding_window", 16)];
    let config = least("gpt-oss", &[&common[..], &own].concat());
    let TokenMixer::Attention(attention) = config.layers[0].mixer else { panic!("no attention") };
    assert_eq!((attention.rope.theta, attention.rope.scaling), (10_000.0, RopeScaling::None));
}
