//! Blocks of content in a request, and what may stand in all of them.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{BODY_BYTES_MAX, NAME_BYTES_MAX, PARTS_MAX};

/// Takes `cache_control`, which asks for what is done anyway: what was computed of a prompt is kept for the next one
/// that begins alike.
///
/// # Errors
/// What is no such mark.
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

/// The blocks of a list, with their type.
///
/// # Errors
/// What is no list, or too long; the first block that is no object or has no type.
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

/// The text of a block of type `text`.
///
/// # Errors
/// What else is in it.
pub(super) fn text(mut fields: Fields) -> Result<String, ApiError> {
    let text = fields.required_text("text", BODY_BYTES_MAX)?;
    // Replies have it, always empty.
    fields.list("citations", 0)?;
    take_cache_control(&mut fields)?;
    fields.end()?;
    Ok(text)
}

/// A text, or blocks of text, whose texts are joined with line breaks.
///
/// # Errors
/// What is neither.
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

/// A block of a type that means nothing here.
pub(super) fn unsupported(fields: &Fields, kind: &str, known: &str) -> ApiError {
    fields.unsupported(
        "type",
        format!("a block of type `{kind}` is not supported here, only {known}"),
    )
}
