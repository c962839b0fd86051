//! Content blocks of requests.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{BODY_BYTES_MAX, NAME_BYTES_MAX, PARTS_MAX};

/// Takes and ignores `cache_control`: prompts are always cached for later requests with the same prefix.
///
/// # Errors
/// Returns an error if the value is invalid.
pub(super) fn take_cache_control(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(mut mark) = fields.object("cache_control")? else { return Ok(()) };
    let kind = mark.required_text("type", NAME_BYTES_MAX)?;
    if kind != "ephemeral" {
        return Err(mark.unsupported("type", "only `ephemeral` is supported"));
    }
    let time = mark.text("ttl", NAME_BYTES_MAX)?;
    if !matches!(time.as_deref(), None | Some("5m" | "1h")) {
        return Err(mark.invalid("ttl", "`5m` or `1h` was expected"));
    }
    mark.end()
}

/// Returns the blocks of a list with their types.
///
/// # Errors
/// Returns an error if the list is too long, or a block is not an object or has no type.
pub(super) fn list(place: &str, content: Vec<Value>) -> Result<Vec<(String, Fields)>, ApiError> {
    if content.len() > PARTS_MAX {
        let message = format!("at most {PARTS_MAX} blocks, found {}", content.len());
        return Err(ApiError::invalid(place, message));
    }
    let read = |(index, block): (usize, Value)| {
        let mut fields = Fields::new(format!("{place}[{index}]"), block)?;
        let kind = fields.required_text("type", NAME_BYTES_MAX)?;
        Ok((kind, fields))
    };
    content.into_iter().enumerate().map(read).collect()
}

/// Returns the text of a block of type `text`.
///
/// # Errors
/// Returns an error for unknown fields.
pub(super) fn text(mut fields: Fields) -> Result<String, ApiError> {
    let text = fields.required_text("text", BODY_BYTES_MAX)?;
    // Blocks of replies have this field; it is always empty.
    fields.list("citations", 0)?;
    take_cache_control(&mut fields)?;
    fields.end()?;
    Ok(text)
}

/// Returns a string, or the texts of text blocks joined with line breaks.
///
/// # Errors
/// Returns an error if `content` is neither.
pub(super) fn texts(place: &str, content: Value) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text),
        Value::Array(blocks) => {
            let blocks = list(place, blocks)?.into_iter().map(|block| {
                let (kind, fields) = block;
                if kind == "text" { text(fields) } else { Err(unsupported(&fields, &kind, "text")) }
            });
            Ok(blocks.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        _ => Err(ApiError::invalid(place, "a text or a list of blocks was expected")),
    }
}

/// Returns an error for an unsupported block type.
pub(super) fn unsupported(fields: &Fields, kind: &str, known: &str) -> ApiError {
    fields.unsupported(
        "type",
        format!("a block of type `{kind}` is not supported here, only {known}"),
    )
}
