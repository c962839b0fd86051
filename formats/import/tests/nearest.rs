//! Errors for unknown families: the most similar known family and the differences.
#![expect(clippy::unwrap_used, reason = "a test that finds no file has failed")]

use std::fs;
use std::path::{Path, PathBuf};

use nestling_import::{Checkpoint, ModelConfig};
use serde_json::{Value, json};

fn tiny(family: &str) -> PathBuf {
    let families = "../../engine/runtime/tests/data/families";
    Path::new(env!("CARGO_MANIFEST_DIR")).join(families).join(family)
}

/// Returns a tiny configuration under an unknown name, with additional keys.
fn unknown(family: &str, more: &Value) -> Value {
    let mut config: Value =
        serde_json::from_slice(&fs::read(tiny(family).join("config.json")).unwrap()).unwrap();
    config["model_type"] = "of_the_future".into();
    config["architectures"] = json!(["OfTheFutureForCausalLM"]);
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

fn refusal(config: &Value) -> String {
    let config = config.to_string();
    ModelConfig::from_json("config.json", config.as_bytes()).unwrap_err().to_string()
}

#[test]
fn keys_say_what_a_family_is_like() {
    let more = json!({ "hc_mult": 4, "o_groups": 8 });
    let error = refusal(&unknown("deepseek-v3", &more));
    let expected = "(as deepseek_v3, but for the keys `hc_mult`, `o_groups`; supported: ";
    assert!(error.contains("\"of_the_future\"") && error.contains(expected), "{error}");
    for (family, model_type) in [
        ("glm4-moe", "glm4_moe"),
        ("minimax-m2", "minimax_m2"),
        ("granite-moe-shared", "granitemoeshared"),
        ("gpt-oss", "gpt_oss"),
        ("qwen3-next", "qwen3_next"),
    ] {
        let error = refusal(&unknown(family, &json!({})));
        assert!(error.contains(&format!("(by its keys as {model_type}; ")), "{family}: {error}");
    }
    // The text part of a multimodal model.
    let error = refusal(&unknown("gemma4", &json!({})));
    assert!(error.contains("as gemma4"), "{error}");
}

#[test]
fn a_known_family_is_refused_with_what_it_needs() {
    let jamba = json!({
        "model_type": "jamba", "num_experts": 16, "mamba_d_state": 16, "hidden_size": 4096,
    });
    let error = refusal(&jamba);
    assert!(error.contains("(needs a Mamba-1 mixer; supported: deepseek_v2, "), "{error}");
    let error = refusal(&json!({ "model_type": "falcon_mamba", "hidden_size": 4096 }));
    assert!(error.contains("(needs a Mamba-1 mixer; supported: "), "{error}");
}

#[test]
fn a_family_that_is_like_none_is_only_refused() {
    let config = json!({
        "model_type": "of_the_future", "num_experts": 8, "ssm_cfg": 3, "time_mix": 1, "hash": "a",
    });
    let error = refusal(&config);
    assert!(error.contains("(supported: deepseek_v2, "), "{error}");
}

#[test]
fn long_lists_and_control_characters_are_cut() {
    let mut more = json!({ "a\u{1b}[2J": 1 });
    for number in 10..30 {
        more[format!("new_key_{number}")] = number.into();
    }
    let error = refusal(&unknown("deepseek-v3", &more));
    assert!(error.contains(" and 15 more; "), "{error}");
    assert!(!error.contains('\u{1b}'), "{error}");
}

/// Returns a checkpoint under an unknown name, with its weights.
fn folder(family: &str, more: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(tiny(family)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let config = unknown(family, more).to_string();
    fs::write(folder.path().join("config.json"), config).unwrap();
    folder
}

#[test]
fn tensors_say_by_what_it_differs() {
    let opened =
        |folder: &tempfile::TempDir| Checkpoint::open(folder.path()).unwrap_err().to_string();
    let same = folder("deepseek-v3", &json!({ "hc_mult": 4 }));
    let error = opened(&same);
    assert!(error.contains("(with the same tensors; as deepseek_v3, but for the keys"), "{error}");
    // Norms per head exist although the configuration disables them.
    let more = folder("glm4-moe", &json!({ "use_qk_norm": false }));
    let error = opened(&more);
    let expected = "with more tensors: `model.layers.N.self_attn.k_norm.weight`, \
                    `model.layers.N.self_attn.q_norm.weight`; by its keys as glm4_moe; ";
    assert!(error.contains(expected), "{error}");
    let fewer = folder("qwen2-moe", &json!({ "num_experts": 64 }));
    let error = opened(&fewer);
    let expected = "without its tensors `model.layers.N.mlp.experts.N.down_proj.weight`, ";
    assert!(error.contains(expected), "{error}");
    // Keys alone are compared if there are no weights.
    fs::remove_file(fewer.path().join("model.safetensors.index.json")).unwrap();
    for entry in fs::read_dir(fewer.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "safetensors") {
            fs::remove_file(path).unwrap();
        }
    }
    let error = opened(&fewer);
    assert!(error.contains("(by its keys as qwen2_moe; supported: "), "{error}");
}
