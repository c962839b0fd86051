//! Families whose layers with a sliding window rotate, and whose others have no RoPE.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic")]

use std::path::Path;

use nestling_import::{
    AttentionConfig, BlockNorms, FeedForward, ImportError, ModelConfig, RopeConfig, TokenMixer,
};
use serde_json::{Value, json};

/// Stands for a key that is left out.
const ABSENT: &str = "absent";

/// Returns the configuration of a tiny family with some keys changed.
fn with(family: &str, changes: Value) -> Result<ModelConfig, ImportError> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../engine/runtime/tests/data/families");
    let text = std::fs::read(folder.join(family).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&text).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
        if value == ABSENT {
            config.as_object_mut().unwrap().remove(key);
        }
    }
    ModelConfig::from_json("config.json", config.to_string().as_bytes())
}

fn attention(config: &ModelConfig) -> Vec<AttentionConfig> {
    let of_layer = |layer: &nestling_import::LayerConfig| match layer.mixer {
        TokenMixer::Attention(attention) => attention,
        other => panic!("{other:?}"),
    };
    config.layers.iter().map(of_layer).collect()
}

/// Returns the windows of all layers, and whether each layer rotates.
fn kinds(config: &ModelConfig) -> Vec<(Option<usize>, bool)> {
    let kind =
        |attention: AttentionConfig| (attention.sliding_window, attention.rope != RopeConfig::NONE);
    attention(config).into_iter().map(kind).collect()
}

fn refuses(family: &str, cases: &[(&str, Value)]) {
    for (key, value) in cases {
        let error = with(family, json!({ *key: value })).unwrap_err().to_string();
        assert!(error.contains(&format!("`{key}`")), "{family} {key}: {error}");
    }
}

const LOCAL: (Option<usize>, bool) = (Some(24), true);
const GLOBAL: (Option<usize>, bool) = (None, false);

#[test]
fn trinity_has_a_layer_without_rope_in_every_four() {
    let plain = with("afmoe", json!({})).unwrap();
    assert_eq!(kinds(&plain), [LOCAL, LOCAL, LOCAL, GLOBAL]);
    assert_eq!(plain.block_norms, BlockNorms::Around);
    let twos = with("afmoe", json!({ "global_attn_every_n_layers": 2 })).unwrap();
    assert_eq!(kinds(&twos), [LOCAL, GLOBAL, LOCAL, GLOBAL]);
    let (full, local) = ("full_attention", "sliding_attention");
    let types = json!({ "layer_types": [full, local, full, full] });
    assert_eq!(kinds(&with("afmoe", types).unwrap()), [GLOBAL, LOCAL, GLOBAL, GLOBAL]);
}

#[test]
fn trinity_scales_its_embedding_if_it_says_so() {
    let scale = |value: Value| {
        with("afmoe", json!({ "mup_enabled": value })).unwrap().multipliers.embedding
    };
    assert_eq!([json!(true), json!(false), Value::Null].map(scale), [40f32.sqrt(), 1.0, 1.0]);
}

#[test]
fn trinity_is_refused_by_name_where_it_would_differ() {
    refuses(
        "afmoe",
        &[
            ("attention_bias", json!(true)),
            ("global_attn_every_n_layers", json!(0)),
            ("layer_types", json!(["sliding_attention"])),
            ("n_group", json!(2)),
            ("num_expert_groups", json!(2)),
            ("num_limited_groups", json!(2)),
            ("num_shared_experts", json!(100_000)),
            ("route_norm", json!(false)),
            ("route_scale", json!(0)),
            ("score_func", json!("softmax")),
            ("sliding_window", Value::Null),
            ("topk_group", json!(2)),
        ],
    );
    let dense = |config: &ModelConfig| {
        let is_dense = |layer: &nestling_import::LayerConfig| {
            matches!(layer.feed_forward, FeedForward::Dense { .. })
        };
        config.layers.iter().filter(|layer| is_dense(layer)).count()
    };
    let found = [0, 1, 9].map(|count| with("afmoe", json!({ "num_dense_layers": count })).unwrap());
    assert_eq!(found.each_ref().map(dense), [0, 1, 4]);
    assert_eq!(found[2].router, None);
}

#[test]
fn exaone_rotates_layers_with_a_window() {
    let plain = with("exaone-moe", json!({})).unwrap();
    assert_eq!(kinds(&plain), [LOCAL, LOCAL, LOCAL, GLOBAL]);
    assert_eq!(plain.block_norms, BlockNorms::Before);
    let twos = json!({ "layer_types": ABSENT, "sliding_window_pattern": 2 });
    assert_eq!(kinds(&with("exaone-moe", twos).unwrap()), [LOCAL, GLOBAL, LOCAL, GLOBAL]);
    let full = json!(vec!["full_attention"; 4]);
    // A window that no layer has.
    let unused = json!({ "layer_types": full });
    assert_eq!(kinds(&with("exaone-moe", unused).unwrap()), [GLOBAL; 4]);
}

/// transformers reads `mlp_layer_types`, or else `first_k_dense_replace`; older files have other keys too.
#[test]
fn exaone_has_the_dense_layers_that_transformers_reads() {
    let types = json!(["sparse", "dense", "sparse", "dense"]);
    let layers = json!({ "mlp_layer_types": types, "is_moe_layer": null });
    let config = with("exaone-moe", layers).unwrap();
    assert_eq!([0, 1, 2, 3].map(|layer| config.is_mixture(layer)), [true, false, true, false]);
    refuses(
        "exaone-moe",
        &[
            ("first_last_k_dense_replace", json!(2)),
            ("is_moe_layer", json!([true, true, true, true])),
            ("mlp_layer_types", json!(["dense"])),
            ("mlp_layer_types", json!(["dense", "sparse", "sparse", "odd"])),
            ("num_shared_experts", json!(100_000)),
            ("scoring_func", json!("softmax")),
            ("sliding_window", Value::Null),
            ("topk_method", json!("greedy")),
        ],
    );
    let pattern = json!({ "layer_types": ABSENT, "sliding_window_pattern": "LLLG" });
    let error = with("exaone-moe", pattern).unwrap_err().to_string();
    assert!(error.contains("`sliding_window_pattern`"), "{error}");
    assert!(with("exaone-moe", json!({ "first_last_k_dense_replace": 1 })).is_ok());
}
