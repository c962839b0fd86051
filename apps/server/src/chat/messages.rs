//! Messages of a chat request.

use nestling::Message;
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{BODY_BYTES_MAX, CALLS_MAX, MESSAGES_MAX, PARTS_MAX};

/// Supported fields of a message. The other fields of the API are for audio and legacy function calls.
const FIELDS: [&str; 8] = [
    "role",
    "content",
    "name",
    "refusal",
    "reasoning_content",
    "reasoning",
    "tool_calls",
    "tool_call_id",
];

/// # Errors
/// Returns an error if there are no messages, too many messages, or an invalid one.
pub(super) fn take(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
    let name = "messages";
    let messages = fields.list(name, MESSAGES_MAX)?;
    let messages = messages.ok_or_else(|| fields.invalid(name, "`messages` is missing"))?;
    if messages.is_empty() {
        return Err(fields.invalid(name, "at least one message was expected"));
    }
    let read = |(index, message)| read(&format!("{name}[{index}]"), message);
    messages.into_iter().enumerate().map(read).collect()
}

fn read(place: &str, message: Value) -> Result<Message, ApiError> {
    let mut fields = Fields::new(place, message)?;
    let mut map = serde_json::Map::new();
    for name in FIELDS {
        if let Some(value) = fields.take(name) {
            map.insert(name.into(), value);
        }
    }
    // Assistant messages of the API have an empty list here.
    let notes = fields.list("annotations", 0)?;
    drop(notes);
    fields.end()?;
    if let Some(content) = map.get("content") {
        check_content(&format!("{place}.content"), content)?;
    }
    if let Some(calls) = map.get("tool_calls") {
        check_calls(&format!("{place}.tool_calls"), calls)?;
    }
    let refused = |error: serde_json::Error| ApiError::invalid(place, error.to_string());
    serde_json::from_value(Value::Object(map)).map_err(refused)
}

fn check_content(place: &str, content: &Value) -> Result<(), ApiError> {
    let parts = match content {
        Value::String(_) => return Ok(()),
        Value::Array(parts) if parts.len() <= PARTS_MAX => parts,
        Value::Array(parts) => {
            let message = format!("at most {PARTS_MAX} parts, found {}", parts.len());
            return Err(ApiError::invalid(place, message));
        }
        _ => return Err(ApiError::invalid(place, "a text or a list of parts was expected")),
    };
    for (index, part) in parts.iter().enumerate() {
        let mut fields = Fields::new(format!("{place}[{index}]"), part.clone())?;
        let kind = fields.required_text("type", 64)?;
        if kind != "text" && kind != "refusal" {
            let message = format!("content of type `{kind}` is not supported, only `text`");
            return Err(fields.unsupported("type", message));
        }
        fields.required_text(&kind, BODY_BYTES_MAX)?;
        fields.end()?;
    }
    Ok(())
}

fn check_calls(place: &str, calls: &Value) -> Result<(), ApiError> {
    let Value::Array(calls) = calls else {
        return Err(ApiError::invalid(place, "a list was expected"));
    };
    if calls.len() > CALLS_MAX {
        let message = format!("at most {CALLS_MAX} calls, found {}", calls.len());
        return Err(ApiError::invalid(place, message));
    }
    for (index, call) in calls.iter().enumerate() {
        let mut fields = Fields::new(format!("{place}[{index}]"), call.clone())?;
        fields.text("id", 512)?;
        fields.text("type", 64)?;
        if let Some(mut function) = fields.object("function")? {
            function.take("name");
            function.take("arguments");
            function.end()?;
        }
        fields.end()?;
    }
    Ok(())
}
