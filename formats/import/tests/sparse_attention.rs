//! Families with sparse attention: contexts end where it would no longer select all positions.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::path::Path;

use nestling_import::{ContextLimit, ImportError, LayerConfig, ModelConfig, TokenMixer, names};
use serde_json::{Value, json};

/// Returns the configuration of a tiny family with some keys changed.
fn with(family: &str, changes: Value) -> Result<ModelConfig, ImportError> {
    let families = "../../engine/runtime/tests/data/families";
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(families).join(family);
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    ModelConfig::from_json("config.json", config.to_string().as_bytes())
}

#[test]
fn contexts_are_limited_to_what_is_selected() {
    for family in ["deepseek-v32", "glm-moe-dsa"] {
        let limit = |selected: usize| {
            let config = with(family, json!({ "index_topk": selected })).unwrap();
            (config.max_position_embeddings, config.context_limit)
        };
        assert_eq!(limit(100), (100, ContextLimit::Selection { trained: 512 }));
        assert_eq!(limit(512), (512, ContextLimit::Trained));
        assert_eq!(limit(2048), (512, ContextLimit::Trained));
    }
}

#[test]
fn attention_within_the_limit_is_that_of_deepseek_v3() {
    let sparse = with("deepseek-v32", json!({})).unwrap();
    let rope = json!({
        "beta_fast": 32, "beta_slow": 1, "factor": 8, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 32, "type": "yarn",
    });
    let same = json!({ "max_position_embeddings": 512, "rope_scaling": rope });
    let dense = with("deepseek-v3", same).unwrap();
    let mixers = |config: &ModelConfig| -> Vec<TokenMixer> {
        config.layers.iter().map(|layer: &LayerConfig| layer.mixer).collect()
    };
    assert_eq!(mixers(&sparse), mixers(&dense));
    assert_eq!(sparse.router, dense.router);
    let is_redundant = names::published(sparse.architecture).is_redundant;
    assert!(is_redundant(&sparse, "model.layers.1.self_attn.indexer.wq_b.weight"));
    assert!(!is_redundant(&sparse, "model.layers.1.self_attn.q_b_proj.weight"));
}

#[test]
fn sizes_that_make_no_sense_are_refused_by_name() {
    let of_both = [
        ("index_head_dim", json!(6)),
        ("index_n_heads", json!(0)),
        ("index_topk", json!(0)),
        ("index_topk", Value::Null),
        ("layer_types", json!(vec!["full_attention"; 3])),
        ("q_lora_rank", Value::Null),
        ("rope_interleave", json!(false)),
        ("mlp_layer_types", json!(["dense"])),
    ];
    let of_glm = [
        ("index_skip_topk_offset", json!(0)),
        ("index_topk_freq", Value::Null),
        ("index_topk_pattern", json!("SFFF")),
        ("index_topk_pattern", json!("FFXF")),
        ("indexer_types", json!(["full"])),
        ("indexer_types", json!(["shared", "full", "full", "full"])),
        ("indexer_types", json!("FSSS")),
        ("moe_router_dtype", json!("bfloat16")),
    ];
    let cases = of_both.iter().flat_map(|case| [("deepseek-v32", case), ("glm-moe-dsa", case)]);
    let cases = cases.chain(of_glm.iter().map(|case| ("glm-moe-dsa", case)));
    for (family, (key, value)) in cases {
        let error = with(family, json!({ *key: value })).unwrap_err().to_string();
        assert!(error.contains(&format!("`{key}`")), "{family} {key}: {error}");
    }
    for changes in [
        json!({ "index_topk_pattern": "FSFS", "index_topk_freq": 4 }),
        json!({ "indexer_types": ["full", "shared", "shared", "full"] }),
        // transformers overwrites it.
        json!({ "head_dim": 192 }),
    ] {
        assert_eq!(with("glm-moe-dsa", changes).unwrap(), with("glm-moe-dsa", json!({})).unwrap());
    }
}
