//! Options as in transformers. Options that it rejects are rejected, keys that it ignores have no effect, and
//! ambiguous settings are rejected.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests may panic")]

use std::path::Path;

use nestling_formats::{FloatId, FloatKind, MatrixId, MatrixKind};
use nestling_import::{Checkpoint, FeedForward, ImportError, ModelConfig, RopeScaling, TokenMixer};
use serde_json::{Value, json};

fn tiny(family: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../engine/runtime/tests/data");
    let folder = match family {
        "qwen3-moe" => folder.join("tiny-qwen3-moe"),
        family => folder.join("families").join(family),
    };
    serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap()
}

/// Returns a configuration with some keys changed, in the text part if there is one.
fn with(family: &str, changes: &Value) -> Result<ModelConfig, ImportError> {
    with_without(family, changes, "")
}

/// Returns a configuration like [`with`], without the key `absent`.
fn with_without(family: &str, changes: &Value, absent: &str) -> Result<ModelConfig, ImportError> {
    let mut config = tiny(family);
    let part = match config.get("text_config") {
        Some(_) => &mut config["text_config"],
        None => &mut config,
    };
    part.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    part.as_object_mut().unwrap().remove(absent);
    ModelConfig::from_json("config.json", config.to_string().as_bytes())
}

fn refusal(family: &str, changes: &Value) -> String {
    with(family, changes).expect_err(&format!("{family} {changes}")).to_string()
}

/// Returns YaRN settings as recommended in model cards.
fn yarn() -> Value {
    json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64 })
}

/// transformers uses `rope_scaling` and ignores `rope_parameters`; other readers do the opposite.
#[test]
fn two_descriptions_of_positions_must_agree() {
    for family in ["qwen3-moe", "qwen3-next", "glm4-moe-lite", "gpt-oss", "mixtral"] {
        let plain = json!({ "rope_type": "default" });
        let both = json!({ "rope_scaling": yarn(), "rope_parameters": plain });
        let error = refusal(family, &both);
        assert!(error.contains("`rope_scaling`") && error.contains("`rope_parameters`"), "{error}");
        let same = json!({ "rope_scaling": yarn(), "rope_parameters": yarn() });
        let alone = json!({ "rope_scaling": yarn(), "rope_parameters": null });
        let found = with(family, &same).unwrap();
        assert_eq!(found, with(family, &alone).unwrap(), "{family}");
        // An empty object counts as absent.
        let empty = json!({ "rope_scaling": {}, "rope_parameters": yarn() });
        assert_eq!(found, with(family, &empty).unwrap(), "{family}");
        let empty = json!({ "rope_scaling": yarn(), "rope_parameters": {} });
        assert_eq!(found, with(family, &empty).unwrap(), "{family}");
    }
    // The base is present only in the ignored object.
    let mut config = tiny("mixtral");
    config.as_object_mut().unwrap().remove("rope_theta");
    config["rope_scaling"] = json!({ "rope_type": "default" });
    config["rope_parameters"] = json!({ "rope_type": "default", "rope_theta": 5e5 });
    let error = ModelConfig::from_json("config.json", config.to_string().as_bytes()).unwrap_err();
    assert!(error.to_string().contains("`rope_scaling`"), "{error}");
}

#[test]
fn kinds_of_positions_must_agree() {
    let mixed = json!({ "rope_scaling": { "rope_type": "default", "type": "yarn" } });
    assert!(refusal("qwen3-moe", &mixed).contains("`type`"));
    let same = json!({ "rope_scaling": { "rope_type": "default", "type": "default" } });
    assert_eq!(with("qwen3-moe", &same).unwrap(), with("qwen3-moe", &json!({})).unwrap());
}

#[test]
fn yarn_needs_its_factor() {
    let mut scaling = yarn();
    scaling.as_object_mut().unwrap().remove("factor");
    for family in ["qwen3-moe", "gpt-oss", "deepseek-v3"] {
        let error = refusal(family, &json!({ "rope_scaling": scaling }));
        assert!(error.contains("`factor`"), "{family}: {error}");
    }
    // A null factor is the quotient of the context lengths.
    scaling["factor"] = Value::Null;
    let implied = json!({ "rope_scaling": scaling, "max_position_embeddings": 256 });
    let given = json!({ "rope_scaling": yarn(), "max_position_embeddings": 256 });
    assert_eq!(with("qwen3-moe", &implied).unwrap(), with("qwen3-moe", &given).unwrap());
    scaling["mscale_all_dim"] = json!(1.0);
    assert!(refusal("deepseek-v3", &json!({ "rope_scaling": scaling })).contains("`factor`"));
}

#[test]
fn windows_of_families_without_one_are_refused() {
    for family in ["olmoe", "granite-moe", "deepseek-v2", "glm4-moe-lite", "qwen3-5-moe"] {
        let error = refusal(family, &json!({ "sliding_window": 16 }));
        assert!(error.contains("`sliding_window`"), "{family}: {error}");
        with(family, &json!({ "sliding_window": null })).unwrap();
    }
    // These families have a switch for the window, which is off.
    for family in ["qwen3-moe", "qwen2-moe", "qwen3-next"] {
        let switched_off = with(family, &json!({ "sliding_window": 16 })).unwrap();
        assert_eq!(switched_off, with(family, &json!({})).unwrap());
    }
}

#[test]
fn lists_of_layers_have_their_length() {
    for family in ["qwen3-moe", "mixtral", "glm4-moe-lite", "deepseek-v3"] {
        let error = refusal(family, &json!({ "layer_types": ["full_attention"] }));
        assert!(error.contains("`layer_types`"), "{family}: {error}");
    }
}

#[test]
fn qwen3_5_reads_no_keys_of_qwen3_next() {
    let plain = with("qwen3-5-moe", &json!({})).unwrap();
    for (key, value) in [
        ("norm_topk_prob", json!(false)),
        ("mlp_only_layers", json!([1])),
        ("decoder_sparse_step", json!(2)),
    ] {
        assert_eq!(with("qwen3-5-moe", &json!({ key: value })).unwrap(), plain, "{key}");
        assert_ne!(
            with("qwen3-next", &json!({ key: value, "intermediate_size": 96 })).unwrap(),
            with("qwen3-next", &json!({})).unwrap(),
            "{key}"
        );
    }
}

#[test]
fn a_number_of_experts_has_one_value() {
    let same = with("qwen3-moe", &json!({ "num_local_experts": tiny("qwen3-moe")["num_experts"] }));
    assert_eq!(same.unwrap(), with("qwen3-moe", &json!({})).unwrap());
    let error = refusal("qwen3-moe", &json!({ "num_local_experts": 99 }));
    assert!(error.contains("`num_local_experts`"), "{error}");
}

#[test]
fn gemma_4_describes_positions_of_all_its_layers() {
    let full = json!({
        "partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"
    });
    let sliding = json!({ "rope_theta": 1e4, "rope_type": "default" });
    let cases = [
        ("sliding_attention", json!({ "full_attention": full })),
        ("full_attention", json!({ "sliding_attention": sliding })),
        (
            "rope_theta",
            json!({ "full_attention": full, "sliding_attention": { "rope_type": "default" } }),
        ),
        (
            // Settings without a type are plain RoPE, which does not support partial rotation.
            "partial_rotary_factor",
            json!({
                "full_attention": { "partial_rotary_factor": 0.25, "rope_theta": 1e6 },
                "sliding_attention": sliding,
            }),
        ),
    ];
    for (key, parameters) in cases {
        let error = refusal("gemma4", &json!({ "rope_parameters": parameters }));
        assert!(error.contains(&format!("`{key}`")), "{key}: {error}");
    }
    for key in ["rope_theta", "partial_rotary_factor"] {
        assert!(refusal("gemma4", &json!({ key: 1.0 })).contains(key), "{key}");
    }
    assert!(refusal("gemma4", &json!({ "rope_scaling": yarn() })).contains("`rope_scaling`"));
    let plain = with("gemma4", &json!({})).unwrap();
    assert_eq!(with("gemma4", &json!({ "rope_parameters": null })).unwrap(), plain);
}

/// The key outside the text part decides whether the head is tied.
#[test]
fn the_whole_model_ties_its_head() {
    for (family, is_tied) in [("gemma4", true), ("qwen3-5-moe", false)] {
        let mut config = tiny(family);
        config.as_object_mut().unwrap().remove("tie_word_embeddings");
        let text = |tied: Value| {
            let mut config = config.clone();
            config["text_config"]["tie_word_embeddings"] = tied;
            ModelConfig::from_json("config.json", config.to_string().as_bytes())
        };
        assert_eq!(text(json!(is_tied)).unwrap().tie_word_embeddings, is_tied);
        let error = text(json!(!is_tied)).unwrap_err().to_string();
        assert!(error.contains("`tie_word_embeddings`"), "{error}");
        config["tie_word_embeddings"] = json!(!is_tied);
        let found = ModelConfig::from_json("config.json", config.to_string().as_bytes()).unwrap();
        assert_eq!(found.tie_word_embeddings, !is_tied);
    }
}

/// Stores and GGUF files have a number of dense layers that transformers ignores.
#[test]
fn a_number_of_dense_layers_is_not_read_of_folders() {
    let two = json!({ "first_k_dense_replace": 2 });
    let config = with("glm4-moe-lite", &two).unwrap();
    let dense = |layer: &&_| matches!(layer, FeedForward::Dense { .. });
    assert_eq!(config.layers.iter().map(|layer| &layer.feed_forward).filter(dense).count(), 2);
    let folder = tempfile::tempdir().unwrap();
    let mut config = tiny("glm4-moe-lite");
    config.as_object_mut().unwrap().extend(two.as_object().unwrap().clone());
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let error = Checkpoint::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("`first_k_dense_replace`"), "{error}");
}

/// LongRoPE needs one valid divisor per frequency.
#[test]
fn every_angle_has_its_factors() {
    let rope = |scaling: &Value| with("qwen3-moe", &json!({ "rope_scaling": scaling }));
    let pairs = {
        let config = with("qwen3-moe", &json!({})).unwrap();
        config.layers[0].mixer.rope().unwrap().dims / 2
    };
    let factors = |first: f64| (0..pairs).map(|at| first + at as f64).collect::<Vec<f64>>();
    let whole = json!({
        "rope_type": "longrope", "short_factor": factors(1.0), "long_factor": factors(2.0),
        "original_max_position_embeddings": 16, "factor": 4.0,
    });
    let config = rope(&whole).unwrap();
    let RopeScaling::LongRope(found) = config.layers[0].mixer.rope().unwrap().scaling else {
        panic!("another kind")
    };
    assert_eq!((found.factors(16)[1], found.factors(17)[1]), (2.0, 3.0));
    // sqrt(1 + ln 4 / ln 16)
    assert!((found.attention_factor - 1.5f64.sqrt()).abs() < 1e-12);
    // The key outside the object, which transformers prefers, is rejected.
    let changes = json!({ "rope_scaling": whole, "original_max_position_embeddings": 32 });
    let error = refusal("qwen3-moe", &changes);
    assert!(error.contains("original_max_position_embeddings"), "{error}");
    let with_zero: Vec<f64> = (0..pairs).map(|at| at as f64).collect();
    for (key, value) in [
        ("short_factor", json!(factors(1.0)[1..])),
        ("long_factor", json!(vec![1.0; pairs + 1])),
        ("long_factor", json!(vec![1.0; 100_000])),
        ("short_factor", json!(with_zero)),
        ("short_factor", json!(vec!["1"; pairs])),
        ("short_factor", json!(3)),
        ("long_factor", Value::Null),
        ("factor", json!(0.0)),
        ("attention_factor", json!(-1.0)),
        ("beta_fast", json!(1.0)),
    ] {
        let mut scaling = whole.clone();
        scaling[key] = value;
        let error = rope(&scaling).unwrap_err().to_string();
        assert!(error.contains(key), "{key}: {error}");
    }
}

/// Linear scaling and that of Llama 3.1.
#[test]
fn kinds_of_positions_have_their_own_keys() {
    let rope = |scaling: Value| {
        let config = with("qwen3-moe", &json!({ "rope_scaling": scaling })).unwrap();
        config.layers[0].mixer.rope().unwrap().scaling
    };
    let linear = json!({ "type": "linear", "factor": 2.5 });
    assert_eq!(rope(linear), RopeScaling::Linear { factor: 2.5 });
    // Dynamic scaling has no effect within the model's context.
    let dynamic = json!({ "rope_type": "dynamic", "factor": 4.0 });
    assert_eq!(rope(dynamic), RopeScaling::None);
    let llama3 = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    });
    let RopeScaling::Llama3(found) = rope(llama3.clone()) else { panic!("another kind") };
    assert_eq!((found.factor, found.low_freq_factor, found.high_freq_factor), (8.0, 1.0, 4.0));
    assert_eq!(found.original_max_position_embeddings, 64);
    for (change, key) in [
        (json!({ "high_freq_factor": 1.0 }), "high_freq_factor"),
        (json!({ "factor": 0.0 }), "factor"),
        (json!({ "low_freq_factor": null }), "low_freq_factor"),
        (json!({ "beta_fast": 32 }), "beta_fast"),
    ] {
        let mut scaling = llama3.clone();
        scaling.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let error = refusal("qwen3-moe", &json!({ "rope_scaling": scaling }));
        assert!(error.contains(key), "{error}");
    }
    let other = json!({ "rope_scaling": { "rope_type": "another" } });
    assert!(refusal("qwen3-moe", &other).contains("supported: default, yarn, linear"));
}

/// transformers fails with a rotated part and a negative scale of queries. It ignores a scaling whose kind is
/// called `type`, and `truncate`.
#[test]
fn gemma_3_refuses_options_that_transformers_ignores() {
    let older = |name: &str| json!({ name: "linear", "factor": 8.0 });
    let nested = |scaling: Value| json!({ "full_attention": scaling });
    let plain = |rope: &str, scaling: Value| {
        let changes = json!({ "rope_scaling": null, "rope_parameters": null, rope: scaling });
        let mut config = tiny("gemma3");
        let config_map = config.as_object_mut().unwrap();
        config_map.extend(changes.as_object().unwrap().clone());
        config_map.retain(|_, value| !value.is_null());
        ModelConfig::from_json("config.json", config.to_string().as_bytes())
    };
    let same = plain("rope_scaling", older("rope_type")).unwrap();
    assert_eq!(same, plain("rope_parameters", nested(older("rope_type"))).unwrap());
    assert_eq!(same, plain("rope_parameters", nested(older("type"))).unwrap());
    let both = json!({ "rope_type": "default", "type": "linear", "factor": 8.0 });
    for found in [
        plain("rope_scaling", older("type")),
        plain("rope_scaling", both.clone()),
        plain("rope_parameters", nested(both)),
    ] {
        let error = found.unwrap_err();
        assert!(matches!(error, ImportError::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("`type`"), "{error}");
    }
    for truncate in [json!(false), json!(null)] {
        let mut scaling = yarn();
        assert!(plain("rope_scaling", scaling.clone()).is_ok());
        scaling["truncate"] = truncate;
        let error = plain("rope_scaling", scaling).unwrap_err().to_string();
        assert!(error.contains("`truncate`"), "{error}");
    }
    let error = refusal("gemma3", &json!({ "query_pre_attn_scalar": -4 }));
    assert!(error.contains("`query_pre_attn_scalar`"), "{error}");
    let error = refusal("gemma3", &json!({ "partial_rotary_factor": 0.5 }));
    assert!(error.contains("`partial_rotary_factor`"), "{error}");
    let whole = with("gemma3", &json!({ "partial_rotary_factor": 1.0 })).unwrap();
    assert_eq!(whole, with("gemma3", &json!({})).unwrap());
}

/// Sliding windows of Qwen's families, disabled by default.
#[test]
fn qwen_sees_a_window_where_it_is_switched_on() {
    let windows = |family: &str, changes: &Value| -> Vec<Option<usize>> {
        let config = with(family, changes).unwrap();
        let of = |mixer: &TokenMixer| match mixer {
            TokenMixer::Attention(attention) => attention.sliding_window,
            _ => None,
        };
        config.layers.iter().map(|layer| of(&layer.mixer)).collect()
    };
    let on = json!({ "use_sliding_window": true, "sliding_window": 5, "max_window_layers": 1 });
    assert!(windows("qwen3-moe", &on).iter().all(|window| *window == Some(5)));
    let found = windows("qwen2-moe", &on);
    assert_eq!((found[0], found[1]), (Some(5), None));
    let off = json!({ "use_sliding_window": false, "sliding_window": 5 });
    for family in ["qwen3-moe", "qwen2-moe"] {
        assert!(windows(family, &off).iter().all(Option::is_none), "{family}");
    }
}

#[test]
fn activations_have_aliases() {
    let swish = json!({ "hidden_act": "swish" });
    for family in ["qwen3-moe", "mixtral", "deepseek-v3", "glm4-moe"] {
        assert_eq!(with(family, &swish).unwrap(), with(family, &json!({})).unwrap(), "{family}");
    }
    let gelu = json!({ "hidden_activation": "gelu_new" });
    assert_eq!(with("gemma4", &gelu).unwrap(), with("gemma4", &json!({})).unwrap());
    assert!(refusal("qwen3-moe", &json!({ "hidden_act": "gelu" })).contains("silu, swish"));
}

/// Kimi-K2 is DeepSeek-V3 under another name.
#[test]
fn kimi_is_read_as_deepseek() {
    let kimi = with("kimi-k2", &json!({})).unwrap();
    let found = with("kimi-k2", &json!({ "model_type": "deepseek_v3" })).unwrap();
    let expected = ModelConfig { architecture: found.architecture, ..kimi.clone() };
    assert_eq!(found, expected);
    assert_ne!(found.architecture, kimi.architecture);
}

/// A multiplier of the parts' outputs can be applied to the residual stream before them instead.
#[test]
fn granite_with_a_shared_expert_has_another_scale() {
    let found = with("granite-moe-shared", &json!({})).unwrap();
    assert_eq!(found.multipliers.residual, 1.0);
    assert!((found.multipliers.embedding - 1.75 / 0.22).abs() < 1e-5);
    assert!((found.rms_norm_eps - 1e-6 / (0.22 * 0.22)).abs() < 1e-10);
    let without = with("granite-moe-shared", &json!({ "shared_intermediate_size": 0 })).unwrap();
    assert_eq!((without.multipliers.residual, without.rms_norm_eps), (0.22, 1e-6));
    let error = refusal("granite-moe-shared", &json!({ "residual_multiplier": -0.5 }));
    assert!(error.contains("`residual_multiplier`"), "{error}");
    // The folded values may exceed the range of their type.
    for (multiplier, eps) in [(9e-4, 1e-6), (1e20, 1e-6), (1e-20, 1e-37), (1e-38, 1e-44)] {
        let changes = json!({ "residual_multiplier": multiplier, "rms_norm_eps": eps });
        let error = refusal("granite-moe-shared", &changes);
        assert!(error.contains("`residual_multiplier`"), "{changes}: {error}");
    }
    let far = json!({
        "residual_multiplier": 1e-10, "rms_norm_eps": 1e-25, "embedding_multiplier": 1e30
    });
    let error = refusal("granite-moe-shared", &far);
    assert!(error.contains("`residual_multiplier`"), "{error}");
}

/// `rotary_dim` is a number of elements, not a rounded fraction of a head.
#[test]
fn as_many_elements_are_turned_as_minimax_says() {
    for head_dim in (2..=64).step_by(2) {
        for dims in (2..=head_dim).step_by(2) {
            let found = with("minimax-m2", &json!({ "head_dim": head_dim, "rotary_dim": dims }));
            let TokenMixer::Attention(attention) = found.unwrap().layers[0].mixer else {
                panic!("no attention")
            };
            assert_eq!(attention.rope.dims, dims, "of {head_dim}");
        }
    }
    for dims in [13, 18] {
        let error = refusal("minimax-m2", &json!({ "rotary_dim": dims }));
        assert!(error.contains("`rotary_dim`"), "{error}");
    }
}

#[test]
fn minimax_layers_of_further_tokens_are_left_out() {
    let config = with("minimax-m2", &json!({})).unwrap();
    let naming = nestling_import::names::published(config.architecture);
    let redundant = |name: &str| (naming.is_redundant)(&config, name);
    for name in
        ["eh_proj.weight", "self_attn.q_proj.weight", "block_sparse_moe.experts.0.w1.weight"]
    {
        assert!(redundant(&format!("model.layers.2.{name}")), "{name}");
        assert!(!redundant(&format!("model.layers.1.{name}")), "{name}");
    }
}

#[test]
fn every_layer_of_dots_is_a_mixture() {
    let error = refusal("dots1", &json!({ "moe_layer_freq": 2 }));
    assert!(error.contains("`moe_layer_freq`"), "{error}");
}

/// Fused expert tensors show their orientation by their sizes. If one of the two is square, the other
/// decides.
#[test]
fn square_experts_lie_as_the_other_tensor_does() {
    use nestling_import::names::in_checkpoint;
    for (hidden, width) in [(40, 20), (40, 40), (40, 16), (24, 40)] {
        let sizes = json!({ "hidden_size": hidden, "moe_intermediate_size": width });
        let config = with("qwen3-vl-moe", &sizes).unwrap();
        let (hidden, width) = (hidden as u64, width as u64);
        for upright in [false, true] {
            let lying = |rows, cols| if upright { [3, rows, cols] } else { [3, cols, rows] };
            let (gate_up, down) = (lying(2 * width, hidden), lying(hidden, width));
            let shape = |name: &str| -> Option<&[u64]> {
                match name.rsplit_once('.')?.1 {
                    "gate_up_proj" => Some(&gate_up),
                    "down_proj" => Some(&down),
                    _ => None,
                }
            };
            let (naming, kind) = (in_checkpoint(&config, shape), MatrixKind::Down);
            let first = (0u32..).take(config.layers.len()).find(|layer| config.is_mixture(*layer));
            let id = MatrixId { kind, layer: first, expert: Some(0) };
            let found = (naming.matrix)(&config, id)[0].transposed;
            assert_eq!(found, !upright, "{hidden} and {width}");
        }
    }
}

/// Published configurations of Ling have the model type of the previous generation, and keys that change the
/// graph are required.
#[test]
fn ling_says_what_it_does() {
    let expected = with("bailing-moe-v2", &json!({})).unwrap();
    assert_eq!(with("bailing-moe-v2", &json!({ "model_type": "bailing_moe" })).unwrap(), expected);
    let biases = with("bailing-moe-v2", &json!({ "use_qkv_bias": true })).unwrap();
    let key = FloatId { kind: FloatKind::KeyBias, layer: Some(1) };
    let found = nestling_import::names::float_tensor(&biases, key).unwrap();
    assert_eq!(found.name, "model.layers.1.attention.query_key_value.bias");
    assert_eq!(found.rows.places(200).unwrap(), (120..160).collect::<Vec<_>>());
    for (key, value) in [
        ("use_qk_norm", Value::Null),
        ("use_qkv_bias", Value::Null),
        ("use_bias", json!(true)),
        ("partial_rotary_factor", Value::Null),
        ("n_group", Value::Null),
        ("rms_norm_eps", Value::Null),
        ("rope_theta", Value::Null),
        ("routed_scaling_factor", Value::Null),
        ("norm_topk_prob", json!(false)),
        ("score_function", json!("softmax")),
        ("moe_router_enable_expert_bias", json!(false)),
        ("moe_shared_expert_intermediate_size", json!(32)),
        ("norm_head", json!(true)),
    ] {
        let error = refusal("bailing-moe-v2", &json!({ key: value }));
        assert!(error.contains(&format!("`{key}`")), "{key}: {error}");
    }
}

/// Mixtures of ERNIE-4.5 are one per `moe_layer_interval` layers of a range.
#[test]
fn ernie_says_which_layers_are_mixtures() {
    let mixtures = |changes: Value| {
        let config = with("ernie4-5-moe", &changes).unwrap();
        (0..config.layers.len() as u32).map(|layer| config.is_mixture(layer)).collect::<Vec<_>>()
    };
    assert_eq!(mixtures(json!({})), [false, true, true]);
    assert_eq!(mixtures(json!({ "moe_layer_end_index": -1 })), [false, true, true]);
    assert_eq!(mixtures(json!({ "moe_layer_end_index": 1 })), [false, true, false]);
    assert_eq!(mixtures(json!({ "moe_layer_start_index": 0 })), [true, true, true]);
    assert_eq!(mixtures(json!({ "moe_layer_interval": 2 })), [false, true, false]);
    for (key, value) in [
        ("use_bias", json!(true)),
        ("moe_use_aux_free", json!(false)),
        ("moe_norm_min", json!(0.5)),
        ("moe_layer_interval", json!(0)),
        ("moe_layer_end_index", json!(-2)),
        ("moe_k", json!(9)),
        ("moe_num_shared_experts", json!(1_000_000)),
    ] {
        let error = refusal("ernie4-5-moe", &json!({ key: value }));
        assert!(error.contains(&format!("`{key}`")), "{key}: {error}");
    }
}

/// Aliases from `attribute_map` of transformers 5.23's configurations: the tiny configuration, the alias, the
/// key, and a different value.
const ALIASES: &[(&str, &str, &str, u64)] = &[
    ("deepseek-v2", "num_experts", "n_routed_experts", 12),
    ("deepseek-v3", "num_local_experts", "n_routed_experts", 12),
    ("dots1", "num_local_experts", "n_routed_experts", 12),
    ("ernie4-5-moe", "num_experts", "moe_num_experts", 5),
    ("ernie4-5-moe", "num_experts_per_tok", "moe_k", 1),
    ("glm4-moe", "num_local_experts", "n_routed_experts", 12),
    ("glm4-moe-lite", "head_dim", "qk_rope_head_dim", 4),
    ("glm4-moe-lite", "num_local_experts", "n_routed_experts", 12),
    ("gpt-oss", "num_experts", "num_local_experts", 7),
    ("minimax-m2", "num_experts", "num_local_experts", 16),
    ("mixtral", "num_experts", "num_local_experts", 7),
    ("olmoe", "num_local_experts", "num_experts", 5),
    ("solar-open", "num_local_experts", "n_routed_experts", 12),
];

/// An alias means the same as its key, and a file with different values for both is rejected.
#[test]
fn other_names_of_keys_are_read() {
    for (family, alias, key, value) in ALIASES {
        let own = with(family, &json!({ *key: value })).unwrap();
        let other = with_without(family, &json!({ *alias: value }), key).unwrap();
        assert_eq!(own, other, "{family}: {alias}");
        assert_eq!(own, with(family, &json!({ *key: value, *alias: value })).unwrap());
        assert_ne!(own, with(family, &json!({})).unwrap(), "{family}: {key}");
        for wrong in [json!(value + 1), json!(null)] {
            let error = refusal(family, &json!({ *key: value, *alias: wrong }));
            assert!(error.contains(&format!("`{alias}`")), "{family}: {error}");
        }
    }
}

/// Widths by transformers' arithmetic: two thirds, a factor, and a multiple.
#[test]
fn widths_of_lfm2_are_adjusted() {
    let width = |changes: Value| match with("lfm2", &changes).unwrap().layers[0].feed_forward {
        FeedForward::Dense { intermediate_size } => intermediate_size,
        FeedForward::Absent | FeedForward::Moe { .. } => 0,
    };
    // 42, 46, 48; 42, 42, 48; the width itself.
    assert_eq!(width(json!({})), 48);
    assert_eq!(width(json!({ "block_ffn_dim_multiplier": 1 })), 48);
    assert_eq!(width(json!({ "block_auto_adjust_ff_dim": false })), 64);
    assert_eq!(width(json!({ "block_ff_dim": 12288, "block_multiple_of": 256 })), 9216);
    for (key, value) in [
        ("block_ffn_dim_multiplier", json!(-1)),
        ("block_ffn_dim_multiplier", json!(1e300)),
        ("block_multiple_of", json!(0)),
        ("block_ff_dim", json!(1)),
        ("block_dim", json!(48)),
        ("theta", json!(10000)),
        ("use_pos_enc", json!(false)),
        ("full_attn_idxs", json!([3])),
        ("full_attn_idxs", json!([-1])),
        ("layer_types", json!(["conv", "conv", "linear_attention"])),
    ] {
        let error = refusal("lfm2", &json!({ key: value }));
        let named = if key == "block_ff_dim" || key == "block_ffn_dim_multiplier" {
            "intermediate_size"
        } else {
            key
        };
        assert!(error.contains(named), "{key}: {error}");
    }
    let mixers = |changes| with("lfm2", &changes).unwrap().layers.into_iter();
    let is_attention =
        |layer: nestling_import::LayerConfig| matches!(layer.mixer, TokenMixer::Attention(_));
    let [indices, types] =
        [json!({}), json!({ "layer_types": ["conv", "conv", "full_attention"] })]
            .map(|changes| mixers(changes).map(is_attention).collect::<Vec<_>>());
    assert_eq!((indices, types), (vec![false, true, false], vec![false, false, true]));
}
