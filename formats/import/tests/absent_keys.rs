//! Configurations with one key left out: the same as with what transformers takes for it written out,
//! or refused by name. What it takes is in `data/absent_keys.json`, which
//! scripts/make_config_defaults.py writes.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::path::Path;

use nestling_import::{ImportError, ModelConfig};
use serde_json::{Map, Value, json};

/// Keys that stores made from GGUF files leave out where there is none. Such a checkpoint has other
/// tensors than one with transformers' default, and is refused by their names.
const ABSENT_IN_STORES: [&str; 2] = ["q_lora_rank", "hidden_size_per_layer_input"];

fn read(path: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn members(value: &Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// The configuration of a tiny checkpoint, without how its experts are stored.
fn tiny(family: &str) -> Value {
    let mut config = match family {
        "qwen3-moe" => read("../../engine/runtime/tests/data/tiny-qwen3-moe/config.json"),
        family => read(&format!("../../engine/runtime/tests/data/families/{family}/config.json")),
    };
    config.as_object_mut().unwrap().remove("quantization_config");
    config
}

fn parse(config: &Value) -> Result<ModelConfig, ImportError> {
    ModelConfig::from_json("config.json", config.to_string().as_bytes())
}

/// The text part of a configuration, or all of it.
fn text(config: &mut Value) -> &mut Map<String, Value> {
    let part =
        if config.get("text_config").is_some() { &mut config["text_config"] } else { config };
    part.as_object_mut().unwrap()
}

#[test]
fn every_absent_key_means_what_transformers_takes_it_for() {
    let table = read("tests/data/absent_keys.json");
    let (mut equal, mut refused, mut wrong) = (0, 0, Vec::new());
    for (family, keys) in members(&table["families"]) {
        let whole = tiny(&family);
        parse(&whole).unwrap();
        for (key, changes) in members(&keys) {
            let mut less = whole.clone();
            text(&mut less).remove(&key).unwrap();
            let found = parse(&less);
            let place = format!("{family} without `{key}`");
            let Value::Object(changes) = changes else {
                match found {
                    Ok(_) => wrong.push(format!("{place}: read, but not by transformers")),
                    Err(error) => assert!(error.to_string().contains('`'), "{place}: {error}"),
                }
                refused += 1;
                continue;
            };
            let mut written = less.clone();
            if changes.contains_key("per_layer_config") {
                // It says what these keys said, which transformers leaves out then.
                for key in ["global_head_dim", "num_global_key_value_heads"] {
                    text(&mut written).remove(key);
                }
            }
            text(&mut written).extend(changes);
            if ABSENT_IN_STORES.contains(&key.as_str()) {
                assert!(parse(&written).ok() != found.ok(), "{place}: no exception is needed");
                continue;
            }
            if key.ends_with("_token_id")
                && text(&mut written).get(&key).and_then(Value::as_u64) >= Some(512)
            {
                // The tiny vocabulary has no such token.
                text(&mut written).insert(key.clone(), Value::Null);
            }
            match (found, parse(&written)) {
                (Ok(found), Ok(expected)) if found == expected => equal += 1,
                (Ok(_), Ok(_)) => wrong.push(format!("{place}: another model")),
                (Err(error), _) => {
                    assert!(error.to_string().contains('`'), "{place}: {error}");
                    refused += 1;
                }
                (Ok(_), Err(error)) => {
                    wrong.push(format!("{place}: read, but not {written}: {error}"))
                }
            }
        }
    }
    println!("{equal} equal, {refused} refused");
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(equal > 250 && refused < 60, "{equal} equal, {refused} refused");
}

/// The default that a family has for a key, and another value: the former is the absent key's.
#[test]
fn known_defaults_are_right() {
    let cases = [
        ("mixtral", "rope_theta", json!(1e6), json!(1e4)),
        ("mixtral", "rms_norm_eps", json!(1e-5), json!(1e-6)),
        ("olmoe", "rms_norm_eps", json!(1e-5), json!(1e-6)),
        ("gpt-oss", "rms_norm_eps", json!(1e-5), json!(1e-6)),
        ("gpt-oss", "sliding_window", json!(128), json!(20)),
        ("glm4-moe-lite", "rms_norm_eps", json!(1e-5), json!(1e-6)),
        ("glm4-moe-lite", "routed_scaling_factor", json!(1.8), json!(1.0)),
        ("deepseek-v3", "routed_scaling_factor", json!(2.5), json!(1.0)),
        ("deepseek-v3", "first_k_dense_replace", json!(3), json!(0)),
    ];
    for (family, key, default, other) in cases {
        let with = |value: Option<Value>| {
            let mut config = tiny(family);
            config.as_object_mut().unwrap().remove(key);
            if let Some(value) = value {
                config[key] = value;
            }
            parse(&config).unwrap()
        };
        assert_eq!(with(None), with(Some(default)), "{family} without `{key}`");
        assert_ne!(with(None), with(Some(other)), "{family} without `{key}`");
    }
    let mut config = tiny("gpt-oss");
    config.as_object_mut().unwrap().remove("rope_scaling");
    let absent = parse(&config).unwrap();
    config["rope_parameters"] = json!({
        "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
        "truncate": false, "rope_theta": 150_000,
    });
    assert_eq!(absent, parse(&config).unwrap());
    config["rope_parameters"] = json!(null);
    assert_eq!(absent, parse(&config).unwrap());
}

/// A key that is null is not one that is left out.
#[test]
fn null_is_refused_where_transformers_refuses_it() {
    for (family, key) in [
        ("mixtral", "rms_norm_eps"),
        ("mixtral", "rope_theta"),
        ("olmoe", "norm_topk_prob"),
        ("gpt-oss", "sliding_window"),
        ("granite-moe", "residual_multiplier"),
        ("qwen2-moe", "num_key_value_heads"),
        ("deepseek-v2", "n_group"),
        ("deepseek-v3", "n_group"),
        ("gemma4", "sliding_window"),
    ] {
        let mut config = tiny(family);
        text(&mut config).insert(key.into(), Value::Null);
        let error = parse(&config).expect_err(key).to_string();
        assert!(error.contains(key) && error.contains("null"), "{family}, {key}: {error}");
    }
    for (family, key) in [
        ("mixtral", "sliding_window"),
        ("olmoe", "num_key_value_heads"),
        ("qwen3-moe", "mlp_only_layers"),
        ("gemma4", "final_logit_softcapping"),
        ("gpt-oss", "layer_types"),
        ("granite-moe", "eos_token_id"),
    ] {
        let mut config = tiny(family);
        text(&mut config).insert(key.into(), Value::Null);
        parse(&config).unwrap();
    }
    let mut config = tiny("granite-moe");
    config["eos_token_id"] = Value::Null;
    assert!(parse(&config).unwrap().eos_token_ids.is_empty());
}
