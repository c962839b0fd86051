//! Input items of a response (`input`).

use nestling::engine::text::MessageContent;
use nestling::{Message, Role, ToolCall};
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{
    BODY_BYTES_MAX, CALLS_MAX, MESSAGES_MAX, NAME_BYTES_MAX, PARTS_MAX, TEXT_BYTES_MAX,
};

/// Reads `instructions` and `input` as chat messages.
///
/// # Errors
/// Returns an error if the input is missing or too long, or for the first invalid item.
pub(super) fn take(
    fields: &mut Fields,
    instructions: Option<&str>,
) -> Result<Vec<Message>, ApiError> {
    let mut history = History::default();
    history.messages.extend(instructions.map(Message::system));
    let name = "input";
    match fields.require(name)? {
        Value::String(text) => history.messages.push(Message::user(text)),
        Value::Array(items) if items.len() > MESSAGES_MAX => {
            let message = format!("at most {MESSAGES_MAX} items, found {}", items.len());
            return Err(fields.invalid(name, message));
        }
        Value::Array(items) if items.is_empty() => {
            return Err(fields.invalid(name, "at least one item was expected"));
        }
        Value::Array(items) => {
            for (index, item) in items.into_iter().enumerate() {
                history.read(Fields::new(format!("{name}[{index}]"), item)?)?;
            }
        }
        _ => return Err(fields.invalid(name, "a text or a list of items was expected")),
    }
    Ok(history.messages)
}

/// Supported types of message parts.
const PARTS: [&str; 3] = ["input_text", "output_text", "refusal"];

#[derive(Default)]
struct History {
    messages: Vec<Message>,
}

impl History {
    fn read(&mut self, mut fields: Fields) -> Result<(), ApiError> {
        // Default: an item without a type is a message.
        let kind = fields.text("type", NAME_BYTES_MAX)?.unwrap_or_else(|| "message".into());
        // The id and status of an item are ignored.
        fields.text("id", TEXT_BYTES_MAX)?;
        fields.text("status", NAME_BYTES_MAX)?;
        match kind.as_str() {
            "message" => self.message(&mut fields)?,
            "reasoning" => self.reasoning(&mut fields)?,
            "function_call" => {
                let call = call(&mut fields)?;
                let message = self.assistant()?;
                message.tool_calls.push(call);
                if message.tool_calls.len() > CALLS_MAX {
                    return Err(
                        fields.invalid("type", format!("at most {CALLS_MAX} calls in a row"))
                    );
                }
            }
            "function_call_output" => {
                let id = fields.required_text("call_id", TEXT_BYTES_MAX)?;
                let output = fields.require("output")?;
                let text = texts(&fields.path("output"), output, &["input_text"])?;
                self.messages.push(Message::tool(id, text));
            }
            _ => {
                let message = format!(
                    "an item of type `{kind}` is not supported: message, reasoning, function_call or function_call_output"
                );
                return Err(fields.unsupported("type", message));
            }
        }
        fields.end()
    }

    fn message(&mut self, fields: &mut Fields) -> Result<(), ApiError> {
        let role = fields.required_text("role", NAME_BYTES_MAX)?;
        let content = fields.require("content")?;
        let text = texts(&fields.path("content"), content, &PARTS)?;
        let role = match role.as_str() {
            "user" => Role::User,
            "system" => Role::System,
            "developer" => Role::Developer,
            "assistant" => {
                let message = self.assistant()?;
                let said = message.content.take().map(|content| content.text() + "\n");
                // Default: the message has no text yet.
                let said = said.unwrap_or_default() + &text;
                message.content = Some(MessageContent::Text(said));
                return Ok(());
            }
            _ => {
                let message =
                    format!("user, assistant, system or developer was expected, found {role:?}");
                return Err(fields.invalid("role", message));
            }
        };
        self.messages.push(Message::new(role, text));
        Ok(())
    }

    /// Returns the assistant message to extend. Reasoning, text and calls of a turn form one message.
    fn assistant(&mut self) -> Result<&mut Message, ApiError> {
        if self.messages.last().is_none_or(|last| last.role != Role::Assistant) {
            self.messages.push(Message { content: None, ..Message::assistant("") });
        }
        self.messages.last_mut().ok_or_else(|| ApiError::internal("a message is lost"))
    }

    fn reasoning(&mut self, fields: &mut Fields) -> Result<(), ApiError> {
        if fields.take("encrypted_content").is_some() {
            let message = "only who encrypted it can read it; `content` was expected";
            return Err(fields.unsupported("encrypted_content", message));
        }
        let mut all = Vec::new();
        for (name, kind) in [("content", "reasoning_text"), ("summary", "summary_text")] {
            if let Some(parts) = fields.take(name) {
                let text = texts(&fields.path(name), parts, &[kind])?;
                // The summary is used if there is no reasoning text.
                if !text.is_empty() && all.is_empty() {
                    all.push(text);
                }
            }
        }
        let message = self.assistant()?;
        for text in all {
            let before = message.reasoning.take().map(|before| before + "\n\n");
            // Default: the message has no reasoning yet.
            message.reasoning = Some(before.unwrap_or_default() + &text);
        }
        Ok(())
    }
}

fn call(fields: &mut Fields) -> Result<ToolCall, ApiError> {
    let id = fields.required_text("call_id", TEXT_BYTES_MAX)?;
    let name = fields.required_text("name", TEXT_BYTES_MAX)?;
    let text = fields.required_text("arguments", BODY_BYTES_MAX)?;
    // Templates receive an object; other arguments stay a string.
    let arguments = match serde_json::from_str(&text) {
        Ok(object @ Value::Object(_)) => object,
        _ if text.trim().is_empty() => Value::Object(serde_json::Map::new()),
        _ => Value::String(text),
    };
    Ok(ToolCall { id, name, arguments })
}

/// Returns a string, or the texts of parts of the known types joined with line breaks.
fn texts(place: &str, content: Value, known: &[&str]) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) if parts.len() <= PARTS_MAX => parts,
        Value::Array(parts) => {
            let message = format!("at most {PARTS_MAX} parts, found {}", parts.len());
            return Err(ApiError::invalid(place, message));
        }
        _ => return Err(ApiError::invalid(place, "a text or a list of parts was expected")),
    };
    let mut all = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let mut fields = Fields::new(format!("{place}[{index}]"), part)?;
        let kind = fields.required_text("type", NAME_BYTES_MAX)?;
        if !known.contains(&kind.as_str()) {
            let message = format!("a part of type `{kind}` is not supported: {}", known.join(", "));
            return Err(fields.unsupported("type", message));
        }
        let name = if kind == "refusal" { "refusal" } else { "text" };
        all.push(fields.required_text(name, BODY_BYTES_MAX)?);
        // Parts of replies have both fields.
        fields.list("annotations", 0)?;
        fields.take("logprobs");
        fields.end()?;
    }
    Ok(all.join("\n"))
}
