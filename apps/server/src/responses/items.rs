//! Input items of a response (`input`).

use nestling::engine::text::MessageContent;
use nestling::{Message, Role, ToolCall};
use serde_json::{Value, json};

use super::sealed::opened;
use crate::error::ApiError;
use crate::field_path::{FieldPath, IgnoredFields};
use crate::fields::Fields;
use crate::limits::{
    BODY_BYTES_MAX, CALLS_MAX, MESSAGES_MAX, NAME_BYTES_MAX, PARTS_MAX, TEXT_BYTES_MAX, TOOLS_MAX,
};
use crate::parts::OMITTED;

/// Reads `instructions`, the items of earlier responses and `input` as chat messages. Tools among the items are
/// added to `tools`.
///
/// # Errors
/// Returns an error if the input is missing or too long, or for the first invalid item.
pub(super) fn take(
    fields: &mut Fields,
    instructions: Option<&str>,
    earlier: Vec<Value>,
) -> Result<Vec<Message>, ApiError> {
    let mut history = History::default();
    history.messages.extend(instructions.map(Message::system));
    let (name, is_first) = ("input", earlier.is_empty());
    let count = earlier.len();
    // What these items have and the server ignores was reported with their own requests.
    let place = FieldPath::request(IgnoredFields::default()).field("previous_response_id");
    for (index, item) in earlier.into_iter().enumerate() {
        history.read(Fields::new(place.item(index), item)?)?;
    }
    match fields.require(name)? {
        Value::String(text) => history.messages.push(Message::user(text)),
        Value::Array(items) if count + items.len() > MESSAGES_MAX => {
            let message = format!("at most {MESSAGES_MAX} items, found {}", count + items.len());
            return Err(fields.invalid(name, message));
        }
        Value::Array(items) if items.is_empty() && instructions.is_none() && is_first => {
            return Err(fields.invalid(name, "at least one item was expected"));
        }
        Value::Array(items) => {
            let place = fields.at(name);
            for (index, item) in items.into_iter().enumerate() {
                history.read(Fields::new(place.item(index), item)?)?;
            }
        }
        _ => return Err(fields.invalid(name, "a text or a list of items was expected")),
    }
    fields.append("tools", history.tools);
    Ok(history.messages)
}

/// Supported types of message parts.
const PARTS: [&str; 3] = ["input_text", "output_text", "refusal"];

#[derive(Default)]
struct History {
    messages: Vec<Message>,
    /// Tools that items list.
    tools: Vec<Value>,
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
            "function_call" | "custom_tool_call" => {
                let call = call(&mut fields, &kind)?;
                let message = self.assistant()?;
                message.tool_calls.push(call);
                if message.tool_calls.len() > CALLS_MAX {
                    return Err(
                        fields.invalid("type", format!("at most {CALLS_MAX} calls in a row"))
                    );
                }
            }
            "function_call_output" | "custom_tool_call_output" => {
                let id = fields.required_text("call_id", TEXT_BYTES_MAX)?;
                let output = fields.require("output")?;
                let text = texts(&fields.at("output"), output, &["input_text"], true)?;
                self.messages.push(Message::tool(id, text));
            }
            "additional_tools" => {
                fields.take("role");
                // Default: no tools.
                self.tools.extend(fields.list("tools", TOOLS_MAX)?.unwrap_or_default());
            }
            // Items of hosted tools in an answer of another server.
            _ => return fields.place().ignore(),
        }
        fields.end()
    }

    fn message(&mut self, fields: &mut Fields) -> Result<(), ApiError> {
        let role = fields.required_text("role", NAME_BYTES_MAX)?;
        let content = fields.require("content")?;
        let repeated = role == "assistant";
        let text = texts(&fields.at("content"), content, &PARTS, repeated)?;
        let role = match role.as_str() {
            "user" => Role::User,
            "system" => Role::System,
            "developer" => Role::Developer,
            "assistant" => {
                let message = self.assistant()?;
                let said = message.content.take().map(|content| content.text().into_owned() + "\n");
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
        let sealed = fields.text("encrypted_content", BODY_BYTES_MAX)?;
        let (mut all, mut has_content) = (Vec::new(), false);
        for (name, kind) in [("content", "reasoning_text"), ("summary", "summary_text")] {
            if let Some(parts) = fields.take(name) {
                let text = texts(&fields.at(name), parts, &[kind], true)?;
                has_content |= name == "content" && !text.is_empty();
                // The summary is used if there is no reasoning text.
                if !text.is_empty() && all.is_empty() {
                    all.push(text);
                }
            }
        }
        // Clients that keep nothing but the opaque text send it in place of the reasoning.
        if let Some(text) = sealed.filter(|_| !has_content) {
            match opened(&text) {
                Some(text) => all = vec![text],
                None => fields.ignore("encrypted_content")?,
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

fn call(fields: &mut Fields, kind: &str) -> Result<ToolCall, ApiError> {
    let id = fields.required_text("call_id", TEXT_BYTES_MAX)?;
    let name = fields.required_text("name", TEXT_BYTES_MAX)?;
    let name = match fields.text("namespace", TEXT_BYTES_MAX)? {
        Some(namespace) if !namespace.is_empty() => format!("{namespace}.{name}"),
        _ => name,
    };
    if kind == "custom_tool_call" {
        let input = fields.required_text("input", BODY_BYTES_MAX)?;
        return Ok(ToolCall { id, name, arguments: json!({ "input": input }) });
    }
    let text = fields.required_text("arguments", BODY_BYTES_MAX)?;
    // Templates receive an object; other arguments stay a string.
    let arguments = match serde_json::from_str(&text) {
        Ok(object @ Value::Object(_)) => object,
        _ if text.trim().is_empty() => Value::Object(serde_json::Map::new()),
        _ => Value::String(text),
    };
    Ok(ToolCall { id, name, arguments })
}

/// Returns a string, or the texts of parts of the known types joined with line breaks. Other parts are refused,
/// except in items that are only repeated: there, a text stands in for them.
fn texts(
    place: &FieldPath,
    content: Value,
    known: &[&str],
    is_repeated: bool,
) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) if parts.len() <= PARTS_MAX => parts,
        Value::Array(parts) => {
            let message = format!("at most {PARTS_MAX} parts, found {}", parts.len());
            return Err(place.invalid(message));
        }
        _ => return Err(place.invalid("a text or a list of parts was expected")),
    };
    let mut all = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let mut fields = Fields::new(place.item(index), part)?;
        let kind = fields.required_text("type", NAME_BYTES_MAX)?;
        if !known.contains(&kind.as_str()) && is_repeated {
            fields.place().ignore()?;
            all.push(OMITTED.to_owned());
            continue;
        }
        if !known.contains(&kind.as_str()) {
            let message = format!("a part of type `{kind}` is not supported: {}", known.join(", "));
            return Err(fields.unsupported("type", message));
        }
        let name = if kind == "refusal" { "refusal" } else { "text" };
        all.push(fields.required_text(name, BODY_BYTES_MAX)?);
        // Parts of replies have both fields.
        fields.take("annotations");
        fields.take("logprobs");
        fields.end()?;
    }
    Ok(all.join("\n"))
}
