//! Tokenizer routes (`/tokenize`, `/detokenize`, `/tokenizer_info`) and token texts for log-probabilities.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use nestling::engine::text::{EncodeOptions, SpecialText, TextError, Tokenizer};
use nestling::{EngineError, Model};
use serde_json::{Value, json};

use crate::blocking::blocking;
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::limits::{BODY_BYTES_MAX, TEXT_BYTES_MAX, TOKENS_MAX};
use crate::sampling::check_name;
use crate::server::ServedModel;

const TOKENS: usize = TOKENS_MAX as usize;

fn tokenizer(model: &Model) -> Result<&Tokenizer, ApiError> {
    let tokenizer = model.tokenizer();
    tokenizer.ok_or_else(|| ApiError::engine(EngineError::NoTokenizer, "prompt"))
}

pub(crate) fn take_model(fields: &mut Fields, served: &ServedModel) -> Result<(), ApiError> {
    match fields.text("model", TEXT_BYTES_MAX)? {
        Some(id) => check_name(&id, served),
        None => Ok(()),
    }
}

/// `POST /tokenize`.
pub(crate) async fn tokenize(
    served: Arc<ServedModel>,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    take_model(&mut fields, &served)?;
    // llama.cpp's server has other names for both fields.
    let name = if fields.names("content") { "content" } else { "prompt" };
    let text = fields.required_text(name, BODY_BYTES_MAX)?;
    let added = fields.flag("add_special_tokens")?.or(fields.flag("add_special")?);
    // Default: special tokens are added as for completions.
    let add_special_tokens = added.unwrap_or(true);
    fields.end()?;
    let options = EncodeOptions { add_special_tokens, special_text: SpecialText::Parse };
    let work = move || {
        let tokens = tokenizer(&served.model)?.encode(&text, options);
        let tokens = tokens.map_err(|error| match error {
            TextError::OutOfMemory { .. } => ApiError::busy(error.to_string()),
            error => ApiError::invalid("prompt", error.to_string()),
        })?;
        let answer = json!({
            "tokens": tokens, "count": tokens.len(), "max_model_len": served.model.context_length(),
        });
        Ok(json_response(StatusCode::OK, &answer))
    };
    blocking(work).await?
}

/// `POST /detokenize`.
pub(crate) async fn detokenize(
    served: Arc<ServedModel>,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    take_model(&mut fields, &served)?;
    let tokens = fields.list("tokens", TOKENS)?;
    let tokens = tokens.ok_or_else(|| fields.invalid("tokens", "`tokens` is missing"))?;
    fields.end()?;
    let work = move || {
        let tokens = ids("tokens", &tokens, &served.model)?;
        let text = tokenizer(&served.model)?.decode(&tokens, true);
        let text = text.map_err(|error| ApiError::invalid("tokens", error.to_string()))?;
        Ok(json_response(StatusCode::OK, &json!({ "prompt": text, "content": text })))
    };
    blocking(work).await?
}

/// Converts a list of token ids and checks them against the vocabulary.
///
/// # Errors
/// Returns an error for the first invalid id.
pub(crate) fn ids(param: &str, values: &[Value], model: &Model) -> Result<Vec<u32>, ApiError> {
    let vocab_size = model.limits().vocab_size;
    let ids = values.iter().enumerate().map(|(index, value)| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.filter(|id| (*id as usize) < vocab_size).ok_or_else(|| {
            let place = format!("{param}[{index}]");
            ApiError::invalid(place, format!("a token id below {vocab_size} was expected"))
        })
    });
    ids.collect()
}

/// `GET /tokenizer_info`.
pub(crate) fn info(served: &ServedModel) -> Result<Response, ApiError> {
    let model = &served.model;
    let tokenizer = tokenizer(model)?;
    let text = |token: &u32| tokenizer.decode(&[*token], true).ok();
    let options = EncodeOptions { add_special_tokens: true, special_text: SpecialText::Plain };
    // The tokenizer encodes an empty text as the BOS token, if it has one.
    let begin = tokenizer.encode("", options).ok().and_then(|tokens| text(tokens.first()?));
    let end = model.end_tokens().first().and_then(text);
    let template = model.chat_template().map(|template| template.source());
    let info = json!({
        "bos_token": begin,
        "eos_token": end,
        "eos_token_ids": model.end_tokens(),
        // Padding is not used here; clients that pad use the EOS token.
        "pad_token": end,
        "chat_template": template,
        "vocab_size": tokenizer.vocab_size(),
        "max_model_len": model.context_length(),
    });
    Ok(json_response(StatusCode::OK, &info))
}

/// Returns the text of a token in log-probability lists, and its bytes.
pub(crate) fn token_text(model: &Model, token: u32) -> (String, Option<Vec<u8>>) {
    // Default: a model without a tokenizer has only token ids.
    let Some(tokenizer) = model.tokenizer() else { return (format!("token_id:{token}"), None) };
    let bytes = match tokenizer.token_bytes(token) {
        Some(bytes) if !bytes.is_empty() => bytes.to_vec(),
        // Default: some ids have no text, such as vocabulary padding.
        _ => tokenizer.decode(&[token], true).unwrap_or_default().into_bytes(),
    };
    match String::from_utf8(bytes) {
        Ok(text) => {
            let bytes = text.as_bytes().to_vec();
            (text, Some(bytes))
        }
        Err(error) => {
            let bytes = error.into_bytes();
            let spelt = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
            (format!("bytes:{spelt}"), Some(bytes))
        }
    }
}
