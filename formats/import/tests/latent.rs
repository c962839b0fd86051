//! Configurations with latent attention. The tests cover published ones, options rejected by name, and the
//! locations of per-head weights in a checkpoint.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic")]

use std::path::Path;

use nestling_formats::{MatrixId, MatrixKind};
use nestling_import::names::{self, Runs, TensorSlice};
use nestling_import::{
    ExpertGroups, ExpertVector, FeedForward, GroupScore, ImportError, LatentConfig, ModelConfig,
    RopePairs, RopeScaling, RouterScore, SharedExpert, SharedGate, TokenMixer,
};
use serde_json::{Value, json};

fn published(name: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/published");
    serde_json::from_slice(&std::fs::read(folder.join(format!("{name}.json"))).unwrap()).unwrap()
}

fn parse(value: &Value) -> Result<ModelConfig, ImportError> {
    ModelConfig::from_json("config.json", value.to_string().as_bytes())
}

/// Returns a published configuration with some keys changed.
fn with(name: &str, changes: &[(&str, Value)]) -> Result<ModelConfig, ImportError> {
    let mut config = published(name);
    for (key, value) in changes {
        config[*key] = value.clone();
    }
    parse(&config)
}

fn latent(config: &ModelConfig) -> LatentConfig {
    let TokenMixer::Latent(latent) = config.layers[0].mixer else { panic!("no latent") };
    latent
}

#[test]
fn deepseek_v2_lite_is_read() {
    let config = parse(&published("DeepSeek-V2-Lite")).unwrap();
    let attention = latent(&config);
    assert_eq!((attention.q_lora_rank, attention.key_dim()), (None, 576));
    assert_eq!(attention.rope_pairs, RopePairs::Adjacent);
    let RopeScaling::Yarn(yarn) = attention.rope.scaling else { panic!("no YaRN") };
    assert_eq!((yarn.factor, yarn.attention_factor), (40.0, 1.0));
    // (0.1 * 0.707 * ln 40 + 1)² / sqrt(192).
    assert!((attention.scale - 0.114_721_4).abs() < 1e-6, "{}", attention.scale);
    let dense =
        |layer: usize| matches!(config.layers[layer].feed_forward, FeedForward::Dense { .. });
    assert!(dense(0) && (1..27).all(|layer| !dense(layer)));
    let shared = SharedExpert { intermediate_size: 2816, gate: SharedGate::Open };
    let moe = FeedForward::Moe {
        num_experts: 64,
        num_experts_per_tok: 6,
        moe_intermediate_size: 1408,
        shared: Some(shared),
    };
    assert_eq!(config.layers[26].feed_forward, moe);
    let router = config.router.unwrap();
    assert_eq!((router.score, router.norm_topk_prob), (RouterScore::Softmax, false));
    assert_eq!((router.scale, router.groups), (1.0, None));
}

#[test]
fn deepseek_v3_is_read() {
    let config = parse(&published("DeepSeek-V3")).unwrap();
    let attention = latent(&config);
    assert_eq!((attention.q_lora_rank, attention.key_dim()), (Some(1536), 576));
    assert_eq!((attention.rope_pairs, attention.norm_eps), (RopePairs::Adjacent, 1e-6));
    // (0.1 * ln 40 + 1)² / sqrt(192).
    assert!((attention.scale - 0.135_234).abs() < 1e-6, "{}", attention.scale);
    let dense =
        |layer: usize| matches!(config.layers[layer].feed_forward, FeedForward::Dense { .. });
    assert!(dense(2) && (3..61).all(|layer| !dense(layer)));
    let router = config.router.unwrap();
    assert_eq!(
        (router.score, router.norm_topk_prob, router.scale),
        (RouterScore::Sigmoid, true, 2.5)
    );
    let groups = ExpertGroups { n_group: 8, topk_group: 4, score: GroupScore::TwoBest };
    assert_eq!((router.selection_bias, router.groups), (ExpertVector::Present, Some(groups)));
    // The published weights are in FP8, which is rejected by name.
    let fp8 = json!({ "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128] });
    let error = with("DeepSeek-V3", &[("quantization_config", fp8)]).unwrap_err();
    assert!(error.to_string().contains("`quantization_config`"), "{error}");
    let halves = with("DeepSeek-V3", &[("rope_interleave", json!(false))]).unwrap();
    assert_eq!(latent(&halves).rope_pairs, RopePairs::Halves);
    for (key, value) in [("scoring_func", json!("softmax")), ("topk_method", json!("greedy"))] {
        let error = with("DeepSeek-V3", &[(key, value)]).unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
    }
}

#[test]
fn glm_4_7_flash_is_read() {
    let config = parse(&published("GLM-4.7-Flash")).unwrap();
    let attention = latent(&config);
    assert_eq!((attention.q_lora_rank, attention.v_head_dim), (Some(768), 256));
    assert_eq!((attention.scale, attention.norm_eps), (1.0 / 16.0, 1e-6));
    assert_eq!(attention.rope.scaling, RopeScaling::None);
    let router = config.router.unwrap();
    assert_eq!(
        (router.score, router.norm_topk_prob, router.scale),
        (RouterScore::Sigmoid, true, 1.8)
    );
    assert_eq!((router.selection_bias, router.groups), (ExpertVector::Present, None));
    // Newer key for dense layers.
    let types: Vec<&str> = (0..47).map(|at| if at < 3 { "dense" } else { "sparse" }).collect();
    let config = with("GLM-4.7-Flash", &[("mlp_layer_types", json!(types))]).unwrap();
    assert!(matches!(config.layers[2].feed_forward, FeedForward::Dense { .. }));
}

#[test]
fn groups_are_read_and_checked() {
    let groups = [("n_group", json!(8)), ("topk_group", json!(3))];
    let limited = [&groups[..], &[("topk_method", json!("group_limited_greedy"))]].concat();
    let found = with("DeepSeek-V2-Lite", &limited).unwrap().router.unwrap().groups;
    let wanted = ExpertGroups { n_group: 8, topk_group: 3, score: GroupScore::Best };
    assert_eq!(found, Some(wanted));
    let found = with("GLM-4.7-Flash", &groups).unwrap().router.unwrap().groups;
    assert_eq!(found, Some(ExpertGroups { score: GroupScore::TwoBest, ..wanted }));
    for changes in [
        [("n_group", json!(7)), ("topk_group", json!(3))],
        [("n_group", json!(64)), ("topk_group", json!(8))],
        [("n_group", json!(32)), ("topk_group", json!(1))],
        [("n_group", json!(8)), ("topk_group", json!(9))],
    ] {
        let error = with("GLM-4.7-Flash", &changes).unwrap_err();
        assert!(matches!(error, ImportError::Value { .. }), "{changes:?}: {error}");
    }
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    for (name, key, value) in [
        ("DeepSeek-V2-Lite", "scoring_func", json!("sigmoid")),
        ("DeepSeek-V2-Lite", "topk_method", json!("noaux_tc")),
        ("DeepSeek-V2-Lite", "norm_topk_prob", json!(true)),
        ("DeepSeek-V2-Lite", "moe_layer_freq", json!(2)),
        ("DeepSeek-V2-Lite", "attention_bias", json!(true)),
        ("DeepSeek-V2-Lite", "num_key_value_heads", json!(4)),
        ("DeepSeek-V2-Lite", "head_dim", json!(128)),
        ("DeepSeek-V2-Lite", "qk_rope_head_dim", json!(63)),
        ("DeepSeek-V2-Lite", "kv_lora_rank", Value::Null),
        ("DeepSeek-V2-Lite", "n_shared_experts", json!(1e9 as u64)),
        ("DeepSeek-V2-Lite", "mlp_layer_types", json!(["dense"])),
        ("GLM-4.7-Flash", "scoring_func", json!("softmax")),
        ("GLM-4.7-Flash", "topk_method", json!("greedy")),
        ("GLM-4.7-Flash", "mlp_layer_types", json!(["dense"])),
        ("GLM-4.7-Flash", "index_topk", json!(2048)),
    ] {
        let error = with(name, &[(key, value.clone())]).unwrap_err().to_string();
        assert!(error.contains(key), "{name}, {key} = {value}: {error}");
    }
}

#[test]
fn up_projections_are_taken_from_one_tensor() {
    let config = parse(&published("GLM-4.7-Flash")).unwrap();
    let id = |kind| MatrixId { kind, layer: Some(5), expert: None };
    let name = "model.layers.5.self_attn.kv_b_proj.weight";
    let keys = names::matrix_tensors(&config, id(MatrixKind::KeyUp));
    let head = |head: usize| TensorSlice {
        rows: Runs::range(head * 448, 192),
        transposed: true,
        ..TensorSlice::whole(name)
    };
    assert_eq!(keys, (0..20).map(head).collect::<Vec<_>>());
    let values = names::matrix_tensors(&config, id(MatrixKind::ValueUp));
    let rows = Runs { start: 192, length: 256, stride: 448 };
    assert_eq!(values, [TensorSlice { rows, ..TensorSlice::whole(name) }]);
    let redundant =
        |name: &str| (names::published(config.architecture).is_redundant)(&config, name);
    assert!(redundant("model.layers.47.eh_proj.weight"));
    assert!(!redundant("model.layers.46.eh_proj.weight"));
}
