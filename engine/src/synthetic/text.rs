//! Configuration and tokenizer of a synthetic store.

use std::collections::BTreeMap;

use nestling_formats::ModelConfig;
use serde_json::{Value, json};

use super::{Asset, SyntheticShape};
use crate::error::EngineError;

/// The file that says what the model is.
const CONFIG: &str = "config.json";

/// The token that ends a text: the one after the 256 bytes.
const END_TOKEN: u32 = 256;

/// The files of a store of that shape.
pub(super) fn assets(shape: &SyntheticShape) -> Vec<Asset> {
    let asset = |name, json: Value| Asset { name, bytes: json.to_string().into_bytes() };
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    vec![
        asset(CONFIG, config_json(shape)),
        asset("tokenizer.json", tokenizer_json()),
        asset("tokenizer_config.json", json!({ "chat_template": template })),
    ]
}

/// What `config.json` of these files means.
pub(super) fn config(assets: &[Asset]) -> Result<ModelConfig, EngineError> {
    let config = assets.iter().find(|asset| asset.name == CONFIG);
    let bytes = config.map(|asset| asset.bytes.as_slice()).unwrap_or_default();
    Ok(ModelConfig::from_json(CONFIG, bytes)?)
}

fn config_json(shape: &SyntheticShape) -> Value {
    json!({
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "attention_bias": false,
        "decoder_sparse_step": 1,
        "eos_token_id": END_TOKEN,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.moe_intermediate_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "mlp_only_layers": [],
        "moe_intermediate_size": shape.moe_intermediate_size,
        "norm_topk_prob": true,
        "num_attention_heads": shape.num_attention_heads,
        "num_experts": shape.num_experts,
        "num_experts_per_tok": shape.num_experts_per_tok,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_key_value_heads": shape.num_key_value_heads,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": false,
        "use_sliding_window": false,
        "vocab_size": shape.vocab_size,
    })
}

/// One token for each byte, in the letters of byte-level BPE, and one that ends a text.
fn tokenizer_json() -> Value {
    let vocabulary: BTreeMap<String, u32> =
        (0..=255u8).map(|byte| (letter(byte).to_string(), u32::from(byte))).collect();
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
    });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [{
            "id": END_TOKEN, "content": "<|end|>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true,
        }],
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": vocabulary, "merges": [],
        },
    })
}

/// The letter that stands for a byte: itself where it can be seen, else one above 255.
fn letter(byte: u8) -> char {
    let visible = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    if visible(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !visible(*byte)).count() as u32;
    char::from_u32(256 + before).unwrap_or(' ')
}
