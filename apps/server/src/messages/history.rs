//! Conversion of Anthropic messages, which consist of blocks, to chat messages.

use nestling::engine::text::MessageContent;
use nestling::{Message, Role, ToolCall};
use serde_json::Value;

use super::blocks;
use crate::error::ApiError;
use crate::field_path::FieldPath;
use crate::fields::Fields;
use crate::limits::{BODY_BYTES_MAX, CALLS_MAX, MESSAGES_MAX, NAME_BYTES_MAX, TEXT_BYTES_MAX};

/// Prefix of a failed tool result. Chat templates have no field for failures.
const ERROR_MARK: &str = "Error: ";

/// Reads `system` and `messages` as chat messages.
///
/// # Errors
/// Returns an error if there are no messages, too many messages, or an invalid one.
pub(super) fn take(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
    let mut history = History::default();
    if let Some(system) = fields.take("system") {
        let text = blocks::system_text(&fields.at("system"), system)?;
        if !text.is_empty() {
            history.messages.push(Message::system(text));
        }
    }
    let name = "messages";
    let messages = fields.list(name, MESSAGES_MAX)?;
    let messages = messages.ok_or_else(|| fields.invalid(name, "`messages` is missing"))?;
    if messages.is_empty() {
        return Err(fields.invalid(name, "at least one message was expected"));
    }
    let place = fields.at(name);
    for (index, message) in messages.into_iter().enumerate() {
        history.read(Fields::new(place.item(index), message)?)?;
    }
    Ok(history.messages)
}

#[derive(Default)]
struct History {
    messages: Vec<Message>,
}

impl History {
    fn read(&mut self, mut fields: Fields) -> Result<(), ApiError> {
        let role = fields.required_text("role", NAME_BYTES_MAX)?;
        let content = fields.require("content")?;
        let place = fields.at("content");
        match role.as_str() {
            "user" => self.user(&place, content)?,
            "assistant" => self.assistant(&place, content)?,
            "system" => {
                let text = blocks::texts(&place, content)?;
                // Many templates accept a system message at the start only.
                let is_first = self.messages.iter().all(|message| message.role == Role::System);
                self.say(if is_first { Role::System } else { Role::User }, text);
            }
            _ => {
                let message = format!("user, assistant or system was expected, found {role:?}");
                return Err(fields.invalid("role", message));
            }
        }
        fields.end()
    }

    /// Adds the tool results and texts of a user turn, in order.
    fn user(&mut self, place: &FieldPath, content: Value) -> Result<(), ApiError> {
        let content = match content {
            Value::Array(content) => content,
            other => {
                let text = blocks::texts(place, other)?;
                self.say(Role::User, text);
                return Ok(());
            }
        };
        for (kind, fields) in blocks::list(place, content)? {
            match kind.as_str() {
                "text" => self.say(Role::User, blocks::text(fields)?),
                "tool_result" => self.messages.push(tool_result(fields)?),
                _ => return Err(blocks::unsupported(&fields, &kind, "text and tool_result")),
            }
        }
        Ok(())
    }

    /// Adds a text. Consecutive texts of one role are merged into one message.
    fn say(&mut self, role: Role, text: String) {
        match self.messages.last_mut() {
            Some(last) if last.role == role => add_text(last, &text),
            _ => self.messages.push(Message::new(role, text)),
        }
    }

    /// Adds the reasoning, texts and calls of an assistant turn.
    fn assistant(&mut self, place: &FieldPath, content: Value) -> Result<(), ApiError> {
        if self.messages.last().is_none_or(|last| last.role != Role::Assistant) {
            let empty = Message { content: None, ..Message::assistant("") };
            self.messages.push(empty);
        }
        // An assistant message was pushed above.
        let Some(message) = self.messages.last_mut() else {
            return Err(ApiError::internal("a message is lost"));
        };
        let content = match content {
            Value::Array(content) => content,
            other => {
                add_text(message, &blocks::texts(place, other)?);
                return Ok(());
            }
        };
        for (kind, mut fields) in blocks::list(place, content)? {
            match kind.as_str() {
                "text" => add_text(message, &blocks::text(fields)?),
                "thinking" => {
                    let text = fields.required_text("thinking", BODY_BYTES_MAX)?;
                    // Signatures are not checked: this server does not sign reasoning.
                    fields.text("signature", BODY_BYTES_MAX)?;
                    fields.end()?;
                    if !text.is_empty() {
                        let before = message.reasoning.take().map(|before| before + "\n\n");
                        // Default: the message has no reasoning yet.
                        message.reasoning = Some(before.unwrap_or_default() + &text);
                    }
                }
                "redacted_thinking" => {
                    // Redacted reasoning is encrypted and is dropped.
                    fields.text("data", BODY_BYTES_MAX)?;
                    fields.end()?;
                }
                "tool_use" => message.tool_calls.push(tool_use(fields)?),
                // Blocks of a hosted tool in an answer of another server.
                _ => fields.place().ignore()?,
            }
            if message.tool_calls.len() > CALLS_MAX {
                return Err(place.invalid(format!("at most {CALLS_MAX} calls")));
            }
        }
        Ok(())
    }
}

fn add_text(message: &mut Message, text: &str) {
    let said = match message.content.take() {
        Some(content) => format!("{}\n{text}", content.text()),
        None => text.to_owned(),
    };
    message.content = Some(MessageContent::Text(said));
}

fn tool_use(mut fields: Fields) -> Result<ToolCall, ApiError> {
    let id = fields.required_text("id", TEXT_BYTES_MAX)?;
    let name = fields.required_text("name", TEXT_BYTES_MAX)?;
    let arguments = fields.require("input")?;
    if !arguments.is_object() {
        return Err(fields.invalid("input", "an object was expected"));
    }
    blocks::take_cache_control(&mut fields)?;
    fields.end()?;
    Ok(ToolCall { id, name, arguments })
}

fn tool_result(mut fields: Fields) -> Result<Message, ApiError> {
    let id = fields.required_text("tool_use_id", TEXT_BYTES_MAX)?;
    let place = fields.at("content");
    let text = match fields.take("content") {
        Some(content) => blocks::result_text(&place, content)?,
        // An empty tool result.
        None => String::new(),
    };
    // Default: the call succeeded.
    let is_error = fields.flag("is_error")?.unwrap_or(false);
    blocks::take_cache_control(&mut fields)?;
    fields.end()?;
    let text = if is_error { format!("{ERROR_MARK}{text}") } else { text };
    Ok(Message::tool(id, text))
}
