//! The small files of a checkpoint, generated from a GGUF file's metadata.

use serde_json::{Map, Value, json};

use super::config::config_json;
use super::tokenizer::Vocabulary;
use super::{GgufHeader, GgufMetadata};
use crate::limits::MAX_CHAT_TEMPLATE_BYTES;
use crate::{Asset, ImportError};

const TEMPLATE: &str = "tokenizer.chat_template";

/// Special tokens of known families that end a message or a text, as in llama.cpp. `<|end|>` is omitted:
/// where `<|return|>` ends the output, `<|end|>` only ends one of its messages.
const END_TOKENS: &[&str] = &[
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|user|>",
    "<|observation|>",
    "<end_of_turn>",
    "<turn|>",
    "<eos>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "<｜end▁of▁sentence｜>",
    "<|role_end|>",
    "</s>",
];

/// Generates `config.json`, `generation_config.json`, `tokenizer.json` and `tokenizer_config.json`.
///
/// # Errors
/// Returns an [`ImportError`] that names the key.
pub fn assets(header: &GgufHeader) -> Result<Vec<Asset>, ImportError> {
    let metadata = &header.metadata;
    let vocabulary = Vocabulary::new(metadata)?;
    let asset = |name: &str, bytes: Vec<u8>| Asset { name: name.into(), bytes };
    let text = |json: Map<String, Value>| Value::Object(json).to_string().into_bytes();
    // The tokenizer is the largest file, so it is generated after all other checks.
    let generation = text(generation(metadata, &vocabulary)?);
    let tokenizer_config = text(tokenizer_config(metadata, &vocabulary)?);
    Ok(vec![
        asset("config.json", config_json(header)?),
        asset("generation_config.json", generation),
        asset("tokenizer.json", vocabulary.json()?),
        asset("tokenizer_config.json", tokenizer_config),
    ])
}

/// Returns the sampling defaults of the file and its end-of-sequence tokens.
fn generation(
    metadata: &GgufMetadata,
    vocabulary: &Vocabulary<'_>,
) -> Result<Map<String, Value>, ImportError> {
    let mut out = Map::new();
    for (theirs, ours) in [
        ("temp", "temperature"),
        ("top_p", "top_p"),
        ("min_p", "min_p"),
        ("penalty_repeat", "repetition_penalty"),
    ] {
        if let Some(value) = metadata.number(&format!("general.sampling.{theirs}"))? {
            out.insert(ours.into(), json!(value));
        }
    }
    if let Some(count) = metadata.unsigned("general.sampling.top_k")? {
        out.insert("top_k".into(), json!(count));
    }
    if let Some((bos, _)) = vocabulary.named("bos")? {
        out.insert("bos_token_id".into(), json!(bos));
    }
    let mut ends = Vec::new();
    for name in ["eos", "eot", "eom"] {
        ends.extend(vocabulary.named(name)?.map(|(id, _)| id));
    }
    let others = vocabulary.control().filter(|(_, text)| END_TOKENS.contains(text));
    ends.extend(others.map(|(id, _)| id));
    let mut seen = std::collections::HashSet::new();
    ends.retain(|id| seen.insert(*id));
    out.insert("eos_token_id".into(), json!(ends));
    Ok(out)
}

fn tokenizer_config(
    metadata: &GgufMetadata,
    vocabulary: &Vocabulary<'_>,
) -> Result<Map<String, Value>, ImportError> {
    let mut out = Map::new();
    for (theirs, ours) in [
        ("bos", "bos_token"),
        ("eos", "eos_token"),
        ("padding", "pad_token"),
        ("unknown", "unk_token"),
    ] {
        if let Some((_, text)) = vocabulary.named(theirs)? {
            out.insert(ours.into(), json!(text));
        }
    }
    out.insert("add_bos_token".into(), json!(vocabulary.adds_bos()?));
    out.insert("add_eos_token".into(), json!(vocabulary.adds_eos()?));
    if let Some(template) = metadata.text(TEMPLATE)? {
        if template.len() as u64 > MAX_CHAT_TEMPLATE_BYTES {
            return Err(ImportError::Limit {
                file: metadata.file().into(),
                what: format!("the length of `{TEMPLATE}`"),
                found: template.len() as u64,
                limit: MAX_CHAT_TEMPLATE_BYTES,
            });
        }
        out.insert("chat_template".into(), json!(template));
    }
    Ok(out)
}
