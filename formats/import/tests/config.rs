//! Configurations: the published one, and changes that must be rejected by name.

use nestling_formats::MatrixKind;
use nestling_import::{
    FeedForward, GenerationDefaults, ImportError, ModelConfig, ModelShape, QkNorm, TokenMixer,
    names,
};
use serde_json::{Value, json};

/// Returns the published configuration of Qwen3-30B-A3B.
fn published() -> Value {
    json!({
        "architectures": ["Qwen3MoeForCausalLM"],
        "attention_bias": false,
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "decoder_sparse_step": 1,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "intermediate_size": 6144,
        "max_position_embeddings": 40960,
        "max_window_layers": 48,
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 768,
        "norm_topk_prob": true,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "output_router_logits": false,
        "rms_norm_eps": 1e-06,
        "rope_scaling": null,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001,
        "sliding_window": null,
        "tie_word_embeddings": false,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0",
        "use_cache": true,
        "use_sliding_window": false,
        "vocab_size": 151936
    })
}

fn parse(value: &Value) -> Result<ModelConfig, ImportError> {
    ModelConfig::from_json("config.json", value.to_string().as_bytes())
}

fn with(key: &str, value: Value) -> Result<ModelConfig, ImportError> {
    let mut config = published();
    config[key] = value;
    parse(&config)
}

#[test]
fn the_published_configuration_is_read() {
    let config = parse(&published()).unwrap();
    let TokenMixer::Attention(attention) = config.layers[0].mixer else { panic!("no attention") };
    assert_eq!((attention.num_attention_heads, attention.num_key_value_heads), (32, 4));
    assert_eq!((config.rms_norm_eps, attention.rope.theta), (1e-6, 1e6));
    assert_eq!((config.bos_token_id, config.eos_token_ids), (Some(151_643), vec![151_645]));
    assert!(config.router.unwrap().norm_topk_prob && !config.tie_word_embeddings);
    assert_eq!(attention.qk_norm, QkNorm::PerHead);
    let moe = FeedForward::Moe {
        num_experts: 128,
        num_experts_per_tok: 8,
        moe_intermediate_size: 768,
        shared: None,
    };
    assert!(config.layers.len() == 48 && config.layers.iter().all(|l| l.feed_forward == moe));
}

#[test]
fn the_shape_has_every_weight_once() {
    let config = parse(&published()).unwrap();
    let shape = ModelShape::new(&config);
    assert_eq!(shape.weights(), 30_532_122_624);
    let matrices = shape.matrices.iter();
    let names: std::collections::HashSet<_> = matrices
        .map(|m| names::matrix_tensors(&config, m.id).remove(0).name)
        .chain(shape.floats.iter().map(|f| names::float_tensor(&config, f.id).unwrap().name))
        .collect();
    assert_eq!(names.len(), shape.matrices.len() + shape.floats.len());
    assert_eq!(names.len(), 18_867);
    assert!(names.contains("model.layers.47.mlp.experts.127.down_proj.weight"));
    assert!(names.contains("model.layers.0.mlp.gate.weight"));
}

#[test]
fn dense_layers_stand_between() {
    let config = with("mlp_only_layers", json!([1, 5])).unwrap();
    let dense = |c: &ModelConfig| -> Vec<usize> {
        let is_dense = |l: &usize| matches!(c.layers[*l].feed_forward, FeedForward::Dense { .. });
        (0..c.layers.len()).filter(is_dense).collect()
    };
    assert_eq!(dense(&config), [1, 5]);
    let shape = ModelShape::new(&config);
    assert_eq!(shape.matrices.iter().filter(|m| m.id.layer == Some(5)).count(), 4 + 3);
    let step = with("decoder_sparse_step", json!(16)).unwrap();
    assert_eq!(dense(&step).len(), 45);
    assert!([15, 31, 47].iter().all(|l| !dense(&step).contains(l)));
    let tied = ModelShape::new(&with("tie_word_embeddings", json!(true)).unwrap());
    assert!(tied.matrices.iter().all(|m| m.id.kind != MatrixKind::Head));
}

#[test]
fn newer_spellings_mean_the_same() {
    let mut config = published();
    let object = config.as_object_mut().unwrap();
    for key in ["rope_theta", "rope_scaling", "torch_dtype"] {
        object.remove(key);
    }
    let rope = json!({"rope_type": "default", "rope_theta": 1_000_000});
    object.insert("rope_parameters".into(), rope);
    object.insert("dtype".into(), json!("bfloat16"));
    object.insert("layer_types".into(), json!(vec!["full_attention"; 48]));
    assert_eq!(parse(&config).unwrap(), parse(&published()).unwrap());
}

#[test]
fn what_changes_the_graph_is_refused_by_name() {
    let cases = [
        ("model_type", json!("llama4")),
        ("architectures", json!(["Qwen2MoeForCausalLM"])),
        ("hidden_act", json!("gelu")),
        ("quantization_config", json!({"quant_method": "fp8"})),
        ("layer_types", json!(["sliding_attention"])),
        ("partial_rotary_factor", json!(0.5)),
    ];
    for (key, value) in cases {
        let error = with(key, value).unwrap_err();
        assert!(matches!(error, ImportError::Unsupported { .. }), "{key}: {error}");
        assert!(error.to_string().contains(key), "{error}");
    }
    let other = with("rope_scaling", json!({"rope_type": "another", "factor": 4.0})).unwrap_err();
    assert!(other.to_string().contains("rope_scaling: `rope_type` is \"another\""), "{other}");
    for (key, value) in [("n_shared_experts", json!(1)), ("logit_softcap", json!(30.0))] {
        let error = with(key, value).unwrap_err();
        assert!(matches!(error, ImportError::UnknownOption { .. }), "{key}: {error}");
    }
    assert!(with("some_new_switch", json!(false)).is_ok(), "switched off");
    assert!(with("some_new_option", json!(null)).is_ok(), "absent");
}

#[test]
fn an_unknown_dense_family_is_called_one() {
    let dense = json!({"model_type": "gpt2", "hidden_size": 4096, "vocab_size": 32000});
    let error = parse(&dense).unwrap_err();
    assert!(matches!(error, ImportError::Dense { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("gpt2 is not a supported family of dense models; supported: gemma3_text"),
        "{error}"
    );
    // Unknown keys that mention experts count as experts.
    for (key, value) in
        [("num_local_experts", json!(16)), ("text_config", json!({"moe_layers": [1]}))]
    {
        let mut mixture = dense.clone();
        mixture.as_object_mut().unwrap().insert(key.into(), value);
        let error = parse(&mixture).unwrap_err();
        assert!(matches!(error, ImportError::Unsupported { .. }), "{error}");
    }
}

#[test]
fn senseless_values_are_refused() {
    let cases = [
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-4)),
        ("hidden_size", json!("2048")),
        ("hidden_size", json!(2048.5)),
        ("hidden_size", json!(1e300)),
        ("hidden_size", json!(u64::MAX)),
        ("vocab_size", json!(1u64 << 40)),
        ("vocab_size", json!(null)),
        ("num_hidden_layers", json!(100_000)),
        ("num_key_value_heads", json!(5)),
        ("num_experts_per_tok", json!(129)),
        ("num_experts", json!([128])),
        ("head_dim", json!(127)),
        ("rms_norm_eps", json!(0.0)),
        ("rms_norm_eps", json!(-1e-6)),
        ("rope_theta", json!(0.0)),
        ("rope_theta", json!(1e30)),
        ("attention_bias", json!("no")),
        ("mlp_only_layers", json!([-1])),
        ("mlp_only_layers", json!({"0": 1})),
        ("decoder_sparse_step", json!(0)),
        ("eos_token_id", json!([151_645, 200_000])),
        ("eos_token_id", json!(vec![1; 65])),
        ("bos_token_id", json!(4_294_967_296u64)),
        ("max_position_embeddings", json!(0)),
    ];
    for (key, value) in cases {
        let text = format!("{key} = {value}");
        let error = with(key, value).expect_err(&text);
        assert!(error.to_string().contains(key), "{text}: {error}");
    }
}

#[test]
fn text_that_is_no_configuration_is_refused() {
    let huge = format!("{{\"a\": \"{}\"}}", "x".repeat(2 << 20));
    let deep = "[".repeat(100_000);
    for text in ["", "{", "[]", "null", "\u{0}", &huge, &deep, "{} {}", "{\"a\":1,\"a\":2}"] {
        let short = &text[..text.len().min(20)];
        assert!(ModelConfig::from_json("config.json", text.as_bytes()).is_err(), "{short}");
    }
    let deep = format!("{{\"a\": {deep}");
    let error = ModelConfig::from_json("config.json", deep.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("recursion limit"), "{error}");
    let twice = published().to_string().replacen('{', "{\"hidden_size\": 1,", 1);
    let error = ModelConfig::from_json("config.json", twice.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("duplicate key `hidden_size`"), "{error}");
}

#[test]
fn generation_defaults_are_read() {
    let text = br#"{"bos_token_id": 151643, "do_sample": true, "eos_token_id": [151645, 151643],
        "pad_token_id": 151643, "temperature": 0.6, "top_k": 20, "top_p": 0.95,
        "transformers_version": "4.51.0"}"#;
    let defaults = GenerationDefaults::from_json("generation_config.json", text).unwrap();
    assert_eq!(defaults.eos_token_ids, [151_645, 151_643]);
    assert_eq!((defaults.temperature, defaults.top_k), (Some(0.6), Some(20)));
    assert_eq!((defaults.top_p, defaults.min_p), (Some(0.95), None));
    for bad in [r#"{"top_p": 2}"#, r#"{"top_k": -1}"#, r#"{"temperature": "hot"}"#] {
        assert!(GenerationDefaults::from_json("g.json", bad.as_bytes()).is_err(), "{bad}");
    }
}
