//! Conversations as JSON.

use nestling::{Conversation, Message, TemplateTime, ToolSchema};
use serde_json::{Map, Value};

use crate::error::Failure;

/// A conversation with separate tools, because the tool choice decides which of them it includes.
#[derive(Debug, Default)]
pub(crate) struct AskedConversation {
    pub conversation: Conversation,
    pub tools: Vec<ToolSchema>,
}

/// Parses `{"messages": [...], "tools": [...], "template_arguments": {...}, "now": seconds}`.
pub(crate) fn read(json: &str) -> Result<AskedConversation, Failure> {
    let wrong = |what: &str, error: &dyn std::fmt::Display| {
        Failure::caller(format!("conversation: {what}: {error}"))
    };
    let mut fields: Map<String, Value> =
        serde_json::from_str(json).map_err(|error| wrong("JSON", &error))?;
    let messages = fields.remove("messages").ok_or_else(|| wrong("messages", &"absent"))?;
    let messages: Vec<Message> = list("messages", messages, serde_json::from_value)?;
    let mut conversation = Conversation::new(messages);
    let tools = match fields.remove("tools") {
        None | Some(Value::Null) => Vec::new(),
        Some(tools) => list("tools", tools, serde_json::from_value)?,
    };
    match fields.remove("template_arguments") {
        None | Some(Value::Null) => {}
        Some(Value::Object(arguments)) => conversation.template_arguments = arguments,
        Some(_) => return Err(wrong("template_arguments", &"expected an object")),
    }
    conversation.now = match fields.remove("now") {
        None | Some(Value::Null) => None,
        Some(now) => {
            let seconds = now.as_i64().ok_or_else(|| wrong("now", &"expected seconds"))?;
            Some(TemplateTime::from_unix_seconds(seconds))
        }
    };
    match fields.keys().next() {
        Some(unknown) => Err(wrong(unknown, &"unknown")),
        None => Ok(AskedConversation { conversation, tools }),
    }
}

/// Returns messages as JSON in the format of the OpenAI API.
pub(crate) fn written(messages: &[Message]) -> Result<String, Failure> {
    serde_json::to_string(messages).map_err(|error| Failure::caller(format!("messages: {error}")))
}

/// Reads a list. Errors name the invalid item, because errors of serde do not contain its index.
fn list<T>(
    name: &str,
    items: Value,
    read: fn(Value) -> serde_json::Result<T>,
) -> Result<Vec<T>, Failure> {
    let wrong = |place: String, error: &dyn std::fmt::Display| {
        Failure::caller(format!("conversation: {place}: {error}"))
    };
    let Value::Array(items) = items else { return Err(wrong(name.into(), &"expected a list")) };
    let item = |(index, item): (usize, Value)| {
        read(item).map_err(|error| wrong(format!("{name}[{index}]"), &error))
    };
    items.into_iter().enumerate().map(item).collect()
}
