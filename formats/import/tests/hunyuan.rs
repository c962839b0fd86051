//! Hunyuan-A13B: norms after RoPE, a base that `alpha` stretches, and the options that are rejected.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic")]

use std::path::Path;

use nestling_import::{
    AttentionBias, AttentionConfig, FeedForward, ImportError, ModelConfig, QkNorm, RopeScaling,
    TokenMixer,
};
use serde_json::{Value, json};

/// Returns the configuration of the tiny checkpoint with some keys changed.
fn with(changes: Value) -> Result<ModelConfig, ImportError> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../engine/runtime/tests/data/families");
    let text = std::fs::read(folder.join("hunyuan-v1-moe/config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&text).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    ModelConfig::from_json("config.json", config.to_string().as_bytes())
}

fn attention(config: &ModelConfig) -> AttentionConfig {
    match config.layers[0].mixer {
        TokenMixer::Attention(attention) => attention,
        other => panic!("{other:?}"),
    }
}

#[test]
fn norms_follow_rope_whose_base_is_stretched() {
    let plain = attention(&with(json!({})).unwrap());
    assert_eq!(plain.qk_norm, QkNorm::PerHeadAfterRope);
    assert!(matches!(plain.rope.scaling, RopeScaling::None));
    assert!((plain.rope.theta / 1e4 / 1000f64.powf(1.2) - 1.0).abs() < 1e-12);
    let theta = |changes: Value| attention(&with(changes).unwrap()).rope.theta;
    assert_eq!(theta(json!({ "rope_scaling": null })), 1e4);
    let alone = json!({ "rope_type": "dynamic", "rope_theta": 500.0, "alpha": 1000.0 });
    let found =
        theta(json!({ "rope_scaling": null, "rope_theta": 500.0, "rope_parameters": alone }));
    assert!((found * 20.0 / plain.rope.theta - 1.0).abs() < 1e-12);
    let bias = attention(&with(json!({ "attention_bias": true })).unwrap()).bias;
    assert_eq!(bias, AttentionBias::All);
}

#[test]
fn lists_hold_one_number_for_all_layers() {
    let chosen = |value: Value| match with(json!({ "moe_topk": value })).unwrap().layers[2] {
        layer if layer.is_mixture() => match layer.feed_forward {
            FeedForward::Moe { num_experts_per_tok, .. } => num_experts_per_tok,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    assert_eq!([json!(2), json!([4, 4, 4])].map(chosen), [2, 4]);
}

#[test]
fn options_that_would_differ_are_refused_by_name() {
    let dynamic = |key: &str, value: Value| {
        let mut rope = json!({ "type": "dynamic", "alpha": 50.0, "factor": 1.0 });
        rope[key] = value;
        rope
    };
    for (key, value) in [
        ("attention_head_dim", json!(16)),
        ("head_dim", Value::Null),
        ("layer_types", json!(["sliding_attention"])),
        ("mlp_bias", json!(true)),
        ("moe_intermediate_size", json!([20, 20, 10])),
        ("moe_intermediate_size", json!(10)),
        ("moe_layer_num_skipped", json!(1)),
        ("moe_topk", json!([3, 3])),
        ("moe_topk", json!([3, 2, 3])),
        ("moe_topk", json!(0)),
        ("moe_topk", json!(8)),
        ("norm_topk_prob", json!(false)),
        ("norm_type", json!("layer")),
        ("num_shared_expert", json!([2, 2, 2])),
        ("num_shared_expert", json!(0)),
        ("routed_scaling_factor", json!(2.0)),
        ("use_cla", json!(true)),
        ("use_mixed_mlp_moe", json!(false)),
        ("use_qk_norm", json!(false)),
        ("use_rotary_pos_emb", json!(false)),
    ] {
        let error = with(json!({ key: value })).unwrap_err().to_string();
        assert!(error.contains(&format!("`{key}`")), "{key}: {error}");
    }
    for (key, value) in [
        ("alpha", json!(0)),
        ("alpha", json!(-1.0)),
        ("type", json!("linear")),
        ("rope_type", json!("default")),
        ("rope_theta", json!(500.0)),
        ("partial_rotary_factor", json!(0.5)),
        ("a_key_of_the_future", json!(1)),
    ] {
        let error = with(json!({ "rope_scaling": dynamic(key, value) })).unwrap_err().to_string();
        assert!(error.contains(&format!("`{key}`")), "{key}: {error}");
    }
}
