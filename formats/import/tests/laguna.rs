//! Laguna: heads, windows, RoPE and gates by layer, and the options that are rejected.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic")]

use std::path::Path;

use nestling_import::{
    AttentionConfig, FeedForward, ImportError, LayerConfig, ModelConfig, OutputGate, RopeScaling,
    TokenMixer,
};
use serde_json::{Value, json};

/// Returns the configuration of the tiny checkpoint with some keys changed.
fn with(changes: Value) -> Result<ModelConfig, ImportError> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../engine/runtime/tests/data/families");
    let text = std::fs::read(folder.join("laguna/config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&text).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    ModelConfig::from_json("config.json", config.to_string().as_bytes())
}

fn attention(config: &ModelConfig) -> Vec<AttentionConfig> {
    let of_layer = |layer: &LayerConfig| match layer.mixer {
        TokenMixer::Attention(attention) => attention,
        other => panic!("{other:?}"),
    };
    config.layers.iter().map(of_layer).collect()
}

/// Returns the query heads, window and rotated elements of each layer.
fn kinds(config: &ModelConfig) -> Vec<(usize, Option<usize>, usize)> {
    let kind = |attention: AttentionConfig| {
        (attention.num_attention_heads, attention.sliding_window, attention.rope.dims)
    };
    attention(config).into_iter().map(kind).collect()
}

#[test]
fn layers_have_heads_windows_and_rope_of_their_own() {
    let plain = with(json!({})).unwrap();
    let (full, local) = ((4, None, 6), (6, Some(24), 12));
    assert_eq!(kinds(&plain), [full, local, local, local, full]);
    let ropes: Vec<_> = attention(&plain).iter().map(|attention| attention.rope).collect();
    assert!(matches!(ropes[0].scaling, RopeScaling::Yarn(_)) && ropes[0].theta == 500_000.0);
    assert!(matches!(ropes[1].scaling, RopeScaling::None) && ropes[1].theta == 10_000.0);
    // Without lists, all layers have the same heads and no window.
    let none = with(json!({ "num_attention_heads_per_layer": null, "layer_types": null })).unwrap();
    assert_eq!(kinds(&none), [full; 5]);
}

#[test]
fn the_first_layer_is_dense_unless_a_list_says_otherwise() {
    let dense = |config: &ModelConfig| -> Vec<bool> {
        let is_dense =
            |layer: &LayerConfig| matches!(layer.feed_forward, FeedForward::Dense { .. });
        config.layers.iter().map(is_dense).collect()
    };
    let first = [true, false, false, false, false];
    assert_eq!(dense(&with(json!({ "mlp_layer_types": null })).unwrap()), first);
    let sparse = json!({ "mlp_layer_types": vec!["sparse"; 5], "mlp_only_layers": null });
    assert_eq!(dense(&with(sparse).unwrap()), [false; 5]);
}

#[test]
fn gates_are_those_of_heads_or_of_elements() {
    let gate = |changes: Value| attention(&with(changes).unwrap())[0].output_gate;
    let other = |gating: Value| gate(json!({ "gating": gating, "gating_types": null }));
    assert_eq!(gate(json!({})), OutputGate::SoftplusPerHead);
    assert_eq!(other(json!(true)), OutputGate::SoftplusPerHead);
    assert_eq!(other(json!("per-element")), OutputGate::Softplus);
    assert_eq!(OutputGate::Softplus.count(4, 12), 48);
    assert_eq!(OutputGate::SoftplusPerHead.count(4, 12), 4);
}

#[test]
fn options_that_would_differ_are_refused_by_name() {
    for (key, value) in [
        ("attention_bias", json!(true)),
        ("decoder_sparse_step", json!(2)),
        ("gating", json!(false)),
        ("gating", json!("per_head")),
        ("gating_types", json!(vec!["per_element"; 5])),
        ("gating_types", json!(vec!["per_head"; 4])),
        ("mlp_layer_types", json!(["dense"])),
        ("mlp_only_layers", json!([0, 1])),
        ("moe_apply_router_weight_on_input", json!(true)),
        ("moe_routed_scaling_factor", json!(0)),
        ("moe_router_logit_softcapping", json!(5.0)),
        ("norm_topk_prob", json!(false)),
        ("num_attention_heads_per_layer", json!([4, 6, 6, 6])),
        ("num_attention_heads_per_layer", json!([4, 6, 5, 6, 4])),
        ("num_attention_heads_per_layer", json!([4, 6, 0, 6, 4])),
        ("partial_rotary_factor", json!(0.5)),
        ("rope_scaling", json!({ "rope_type": "yarn", "factor": 2.0 })),
        ("rope_theta", json!(500_000.0)),
        ("sliding_window", Value::Null),
    ] {
        let error = with(json!({ key: value })).unwrap_err().to_string();
        assert!(error.contains(&format!("`{key}`")), "{key}: {error}");
    }
}

#[test]
fn rope_settings_are_refused_by_name() {
    let full = json!({ "rope_type": "default", "rope_theta": 500.0 });
    for (parameters, key) in [
        (json!({ "rope_type": "default", "rope_theta": 500.0 }), "rope_type"),
        (json!({ "full_attention": full }), "sliding_attention"),
        (json!({ "sliding_attention": full }), "full_attention"),
        (
            json!({ "full_attention": { "rope_type": "default" }, "sliding_attention": full }),
            "rope_theta",
        ),
        (
            json!({
                "full_attention": full, "sliding_attention": full,
                "original_max_position_embeddings": 64,
            }),
            "original_max_position_embeddings",
        ),
        (
            json!({
                "full_attention": {
                    "rope_type": "yarn", "factor": 2.0, "rope_theta": 5e5, "truncate": false,
                },
                "sliding_attention": full,
            }),
            "truncate",
        ),
    ] {
        let error = with(json!({ "rope_parameters": parameters })).unwrap_err().to_string();
        assert!(error.contains(&format!("`{key}`")), "{key}: {error}");
    }
}
