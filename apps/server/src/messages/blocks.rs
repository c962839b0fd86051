//! Content blocks of requests.

use serde_json::Value;

use crate::error::ApiError;
use crate::field_path::FieldPath;
use crate::fields::Fields;
use crate::limits::{BODY_BYTES_MAX, NAME_BYTES_MAX, PARTS_MAX};
use crate::parts::OMITTED;

/// Takes `cache_control`. It asks for what happens anyway: prompts are cached for later requests with the same
/// prefix.
///
/// # Errors
/// Returns an error if the value is not an object.
pub(super) fn take_cache_control(fields: &mut Fields) -> Result<(), ApiError> {
    fields.object("cache_control").map(drop)
}

/// Returns the blocks of a list with their types.
///
/// # Errors
/// Returns an error if the list is too long, or a block is not an object or has no type.
pub(super) fn list(
    place: &FieldPath,
    content: Vec<Value>,
) -> Result<Vec<(String, Fields)>, ApiError> {
    if content.len() > PARTS_MAX {
        let message = format!("at most {PARTS_MAX} blocks, found {}", content.len());
        return Err(place.invalid(message));
    }
    let read = |(index, block): (usize, Value)| {
        let mut fields = Fields::new(place.item(index), block)?;
        let kind = fields.required_text("type", NAME_BYTES_MAX)?;
        Ok((kind, fields))
    };
    content.into_iter().enumerate().map(read).collect()
}

/// Returns the text of a block of type `text`.
///
/// # Errors
/// Returns an error if there is no text.
pub(super) fn text(mut fields: Fields) -> Result<String, ApiError> {
    let text = fields.required_text("text", BODY_BYTES_MAX)?;
    take_cache_control(&mut fields)?;
    fields.end()?;
    Ok(text)
}

/// Returns a string, or the texts of text blocks joined with line breaks.
///
/// # Errors
/// Returns an error if `content` is neither.
pub(super) fn texts(place: &FieldPath, content: Value) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text),
        Value::Array(blocks) => {
            let blocks = list(place, blocks)?.into_iter().map(|block| {
                let (kind, fields) = block;
                if kind == "text" { text(fields) } else { Err(unsupported(&fields, &kind, "text")) }
            });
            Ok(blocks.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        _ => Err(place.invalid("a text or a list of blocks was expected")),
    }
}

/// First words of a line that Claude Code puts before its system prompt. It is addressed to the operator of the
/// server and changes with every request, so that no prefix would be shared.
const BILLING: &str = "x-anthropic-billing-header:";

/// Returns the text of the system prompt, without blocks that are not for the model.
///
/// # Errors
/// Returns an error if `content` is neither a text nor a list of text blocks.
pub(super) fn system_text(place: &FieldPath, content: Value) -> Result<String, ApiError> {
    let Value::Array(mut blocks) = content else { return texts(place, content) };
    let is_billing = |block: &Value| {
        let text = block.get("text").and_then(Value::as_str);
        text.is_some_and(|text| text.starts_with(BILLING) && text.lines().count() == 1)
    };
    if blocks.first().is_some_and(is_billing) {
        blocks.remove(0);
    }
    texts(place, Value::Array(blocks))
}

/// Returns the text of a tool result. Blocks of other types are replaced by [`OMITTED`] and reported: refusing
/// them would end a conversation in which a tool returned an image once.
///
/// # Errors
/// Returns an error if `content` is neither a text nor a list of blocks.
pub(super) fn result_text(place: &FieldPath, content: Value) -> Result<String, ApiError> {
    let Value::Array(blocks) = content else { return texts(place, content) };
    let blocks = list(place, blocks)?.into_iter().map(|(kind, fields)| {
        if kind == "text" {
            return text(fields);
        }
        fields.place().ignore()?;
        Ok(OMITTED.to_owned())
    });
    Ok(blocks.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// Returns an error for an unsupported block type.
pub(super) fn unsupported(fields: &Fields, kind: &str, known: &str) -> ApiError {
    fields.unsupported(
        "type",
        format!("a block of type `{kind}` is not supported here, only {known}"),
    )
}
