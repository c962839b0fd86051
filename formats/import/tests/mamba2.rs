//! Configurations with Mamba-2: sizes that follow from others, positions, and options that are refused by name.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic")]

use std::path::Path;

use nestling_import::{
    FeedForward, ImportError, Mamba2Config, ModelConfig, RopeConfig, TokenMixer,
};
use serde_json::{Value, json};

/// Returns the configuration of Granite 4 H-Tiny with one key changed.
fn with(key: &str, value: Value) -> Result<ModelConfig, ImportError> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/published");
    let text = std::fs::read(folder.join("granite-4.0-h-tiny.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&text).unwrap();
    config[key] = value;
    ModelConfig::from_json("config.json", config.to_string().as_bytes())
}

fn mamba2(config: &ModelConfig) -> Mamba2Config {
    match config.layers[0].mixer {
        TokenMixer::Mamba2(mamba2) => mamba2,
        other => panic!("{other:?}"),
    }
}

fn rope(config: &ModelConfig) -> RopeConfig {
    *config.layers[5].mixer.rope().unwrap()
}

#[test]
fn sizes_follow_from_those_of_the_model() {
    let plain = with("model_type", json!("granitemoehybrid")).unwrap();
    let sizes = mamba2(&plain);
    assert_eq!((sizes.inner(), sizes.channels(), sizes.inputs()), (3072, 3328, 6448));
    assert_eq!(sizes.state_floats(), 3 * 3328 + 48 * 64 * 128);
    // The norm within the layer keeps its epsilon; those of the residual stream are divided by a factor.
    assert_eq!((sizes.norm_eps, plain.multipliers.residual), (1e-5, 1.0));
    assert!(plain.rms_norm_eps > 1e-5);
    assert_eq!(with("mamba_d_head", json!("auto")).unwrap(), plain);
    assert_eq!(with("time_step_limit", json!([0.0, "Infinity"])).unwrap(), plain);
    assert_eq!(with("time_step_limit", json!([0, { "__float__": "Infinity" }])).unwrap(), plain);
}

#[test]
fn attention_has_rope_only_if_the_configuration_says_so() {
    assert_eq!(rope(&with("position_embedding_type", json!("nope")).unwrap()), RopeConfig::NONE);
    assert_eq!(rope(&with("position_embedding_type", Value::Null).unwrap()), RopeConfig::NONE);
    assert_eq!(rope(&with("position_embedding_type", json!("rope")).unwrap()).dims, 128);
}

#[test]
fn without_experts_the_shared_part_is_dense() {
    let config = with("num_local_experts", json!(0)).unwrap();
    assert_eq!(config.layers[0].feed_forward, FeedForward::Dense { intermediate_size: 1024 });
    assert_eq!(config.router, None);
}

#[test]
fn what_would_change_the_model_is_refused_by_name() {
    for (key, value) in [
        ("hidden_act", json!("gelu")),
        ("layer_types", json!(["mamba"])),
        ("layer_types", json!(vec!["conv"; 40])),
        ("mamba_d_conv", json!(17)),
        ("mamba_d_head", json!(32)),
        ("mamba_d_state", json!(0)),
        ("mamba_expand", json!(1000)),
        ("mamba_n_groups", json!(5)),
        ("mamba_n_heads", json!(0)),
        ("normalization_function", json!("layernorm")),
        ("position_embedding_type", json!("alibi")),
        ("shared_intermediate_size", json!(0)),
        ("time_step_limit", json!([0.0, 0.1])),
        ("time_step_limit", json!([0.001, "Infinity"])),
    ] {
        let error = with(key, value.clone()).err().map(|error| error.to_string());
        assert!(
            error.as_ref().is_some_and(|error| error.contains(key)),
            "{key} {value}: {error:?}"
        );
    }
}
