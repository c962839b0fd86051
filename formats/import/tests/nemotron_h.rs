//! Nemotron-H: blocks that become layers, and options that are refused by name.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::path::Path;

use nestling_import::{Activation, FeedForward, ImportError, ModelConfig, TokenMixer};
use serde_json::{Value, json};

fn published() -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/published");
    let text = std::fs::read(folder.join("nemotron-3-nano-30b-a3b.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn read(config: &Value) -> Result<ModelConfig, ImportError> {
    ModelConfig::from_json("config.json", config.to_string().as_bytes())
}

/// Returns the published configuration with one key changed.
fn with(key: &str, value: Value) -> Result<ModelConfig, ImportError> {
    let mut config = published();
    config[key] = value;
    read(&config)
}

/// Returns the published configuration with other blocks.
fn blocks(pattern: &str) -> Result<ModelConfig, ImportError> {
    let mut config = published();
    config["hybrid_override_pattern"] = json!(pattern);
    config["num_hidden_layers"] = json!(pattern.chars().count());
    read(&config)
}

/// Returns a letter for each part of each layer.
fn parts(config: &ModelConfig) -> String {
    let of_layer = |layer: &nestling_import::LayerConfig| {
        let mixer = match layer.mixer {
            TokenMixer::Mamba2(_) => "M",
            _ => "*",
        };
        let part = match layer.feed_forward {
            FeedForward::Absent => "",
            FeedForward::Dense { .. } => "-",
            FeedForward::Moe { .. } => "E",
        };
        format!("{mixer}{part}")
    };
    config.layers.iter().map(of_layer).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_mixer_and_the_part_after_it_are_one_layer() {
    let config = read(&published()).unwrap();
    assert_eq!(config.num_hidden_layers, 29);
    assert!(parts(&config).starts_with("ME ME M *E ME ME M *E"), "{}", parts(&config));
    assert_eq!((config.activation, config.rms_norm_eps), (Activation::Relu2, 1e-5));
    assert_eq!(parts(&blocks("M*-M-").unwrap()), "M *- M-");
    assert_eq!(parts(&blocks("*").unwrap()), "*");
}

#[test]
fn lists_and_patterns_say_the_same() {
    let mut config = published();
    let pattern = config["hybrid_override_pattern"].as_str().unwrap().to_owned();
    let names = |mamba: &str, attention: &str| {
        let name = |kind| match kind {
            'M' => mamba.to_owned(),
            '*' => attention.to_owned(),
            _ => "moe".to_owned(),
        };
        pattern.chars().map(name).collect::<Vec<_>>()
    };
    let expected = read(&config).unwrap();
    config["hybrid_override_pattern"] = Value::Null;
    for names in [names("mamba", "attention"), names("linear_attention", "full_attention")] {
        config["layers_block_type"] = json!(names);
        assert_eq!(read(&config).unwrap(), expected);
    }
}

/// Python writes numbers that JSON does not have.
#[test]
fn bare_infinities_are_read() {
    let config = published().to_string();
    let with = |value: &str| {
        let text = config.replacen('{', &format!("{{\"time_step_limit\": {value}, "), 1);
        ModelConfig::from_json("config.json", text.as_bytes())
    };
    assert_eq!(with("[0.0, Infinity]").unwrap(), read(&published()).unwrap());
    for refused in
        ["[0.0, -Infinity]", "[0.0, NaN]", "[NaN, Infinity]", "[0.1, Infinity]", "Infinity"]
    {
        let error = with(refused).unwrap_err().to_string();
        assert!(error.contains("time_step_limit"), "{refused}: {error}");
    }
    let text = config.replacen('{', "{\"name_or_path\": \"to \\\" Infinity, NaN\", ", 1);
    assert!(ModelConfig::from_json("config.json", text.as_bytes()).is_ok());
    let error = with("Infinit").unwrap_err();
    assert!(matches!(error, ImportError::Json { .. }), "{error}");
}

#[test]
fn what_would_change_the_model_is_refused_by_name() {
    for (key, value) in [
        ("attention_bias", json!(true)),
        ("hybrid_override_pattern", json!("MEX")),
        ("hybrid_override_pattern", json!("ME")),
        ("layers_block_type", json!(["mamba", "moe"])),
        ("mamba_hidden_act", json!("gelu")),
        ("mamba_num_heads", json!(60)),
        ("mlp_bias", json!(true)),
        ("mlp_hidden_act", json!("silu")),
        ("moe_latent_size", json!(1024)),
        ("n_groups", json!(7)),
        ("rope_scaling", json!({ "rope_type": "yarn", "factor": 4.0 })),
        ("num_experts_per_tok", json!(129)),
        ("sliding_window", json!(64)),
        ("time_step_limit", json!([0.0, 0.1])),
        ("time_step_min", json!(0.5)),
    ] {
        let error = with(key, value.clone()).err().map(|error| error.to_string());
        let names_it = |error: &String| error.contains(key) || error.contains("n_groups");
        assert!(error.as_ref().is_some_and(names_it), "{key} {value}: {error:?}");
    }
    for pattern in ["EM", "MEE", "-M", "M-E"] {
        let error = blocks(pattern).unwrap_err().to_string();
        assert!(error.contains("hybrid_override_pattern"), "{pattern}: {error}");
    }
}
