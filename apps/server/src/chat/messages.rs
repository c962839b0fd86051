//! Messages of a chat request.

use nestling::Message;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::field_path::FieldPath;
use crate::fields::{Fields, says_nothing};
use crate::limits::{BODY_BYTES_MAX, CALLS_MAX, MESSAGES_MAX, NAME_BYTES_MAX, PARTS_MAX};
use crate::parts::OMITTED;

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
    let place = fields.at(name);
    let read = |(index, message)| read(&place.item(index), message);
    messages.into_iter().enumerate().map(read).collect()
}

fn read(place: &FieldPath, message: Value) -> Result<Message, ApiError> {
    let mut fields = Fields::new(place.clone(), message)?;
    let mut map = serde_json::Map::new();
    for name in FIELDS {
        if let Some(value) = fields.take(name) {
            map.insert(name.into(), value);
        }
    }
    // Assistant messages of the API have an empty list here.
    if fields.take("annotations").is_some_and(|notes| !says_nothing(&notes)) {
        fields.ignore("annotations")?;
    }
    let takes_media = map.get("role").is_some_and(|role| role == "tool" || role == "assistant");
    fields.end()?;
    if let Some(content) = map.get_mut("content") {
        read_content(&place.field("content"), content, takes_media)?;
    }
    if let Some(calls) = map.get("tool_calls") {
        check_calls(&place.field("tool_calls"), calls)?;
    }
    let refused = |error: serde_json::Error| place.invalid(error.to_string());
    serde_json::from_value(Value::Object(map)).map_err(refused)
}

/// Checks the content of a message and reduces its parts to the fields that templates read. Parts that are no
/// text are refused, except in messages that are only repeated: there, a text stands in for them.
fn read_content(place: &FieldPath, content: &mut Value, is_repeated: bool) -> Result<(), ApiError> {
    let parts = match content {
        Value::String(_) => return Ok(()),
        Value::Array(parts) if parts.len() <= PARTS_MAX => parts,
        Value::Array(parts) => {
            let message = format!("at most {PARTS_MAX} parts, found {}", parts.len());
            return Err(place.invalid(message));
        }
        _ => return Err(place.invalid("a text or a list of parts was expected")),
    };
    for (index, part) in parts.iter_mut().enumerate() {
        let mut fields = Fields::new(place.item(index), part.take())?;
        let kind = fields.required_text("type", NAME_BYTES_MAX)?;
        *part = match kind.as_str() {
            "text" | "refusal" => {
                let text = fields.required_text(&kind, BODY_BYTES_MAX)?;
                fields.object("cache_control")?;
                fields.end()?;
                json!({ "type": kind, (kind): text })
            }
            _ if is_repeated => {
                fields.place().ignore()?;
                json!({ "type": "text", "text": OMITTED })
            }
            _ => {
                let message = format!("content of type `{kind}` is not supported, only `text`");
                return Err(fields.unsupported("type", message));
            }
        };
    }
    Ok(())
}

/// Checks the calls of a repeated message.
fn check_calls(place: &FieldPath, calls: &Value) -> Result<(), ApiError> {
    let Value::Array(calls) = calls else {
        return Err(place.invalid("a list was expected"));
    };
    if calls.len() > CALLS_MAX {
        let message = format!("at most {CALLS_MAX} calls, found {}", calls.len());
        return Err(place.invalid(message));
    }
    for (index, call) in calls.iter().enumerate() {
        let mut fields = Fields::new(place.item(index), call.clone())?;
        fields.text("id", 512)?;
        fields.text("type", 64)?;
        fields.take("index");
        if let Some(mut function) = fields.object("function")? {
            function.take("name");
            function.take("arguments");
            function.end()?;
        }
        fields.end()?;
    }
    Ok(())
}
