//! Configuration and tokenizer of a synthetic store.

use nestling_formats::Invariant;
use std::collections::BTreeMap;

use nestling_import::ModelConfig;
use serde_json::{Value, json};

use super::{Asset, SyntheticShape};
use nestling_core::error::EngineError;

const CONFIG: &str = "config.json";

/// End-of-text token, which follows the 256 byte tokens.
const END_TOKEN: u32 = 256;

/// Returns the embedded files of a store with this shape.
///
/// # Errors
/// Returns an error if the shape's keys are not a JSON object.
pub(super) fn assets(shape: &SyntheticShape) -> Result<Vec<Asset>, EngineError> {
    let asset = |name, json: Value| Asset { name, bytes: json.to_string().into_bytes() };
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    let config = shape.config(END_TOKEN).map_err(|error| {
        EngineError::mismatch(format!("shape {}", shape.name), "a JSON object", error.to_string())
    })?;
    Ok(vec![
        asset(CONFIG, config),
        asset("tokenizer.json", tokenizer_json()),
        asset("tokenizer_config.json", json!({ "chat_template": template })),
    ])
}

pub(super) fn config(assets: &[Asset]) -> Result<ModelConfig, EngineError> {
    let config = assets.iter().find(|asset| asset.name == CONFIG);
    let config = config.invariant("the assets have a configuration")?;
    Ok(ModelConfig::from_json(CONFIG, &config.bytes)?)
}

/// Returns a tokenizer with one token per byte, in the alphabet of byte-level BPE, and an end-of-text token.
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

/// Returns the letter that represents a byte: itself if visible, else one above 255.
fn letter(byte: u8) -> char {
    let visible = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    if visible(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !visible(*byte)).count() as u32;
    char::from_u32(256 + before).unwrap_or(' ')
}
