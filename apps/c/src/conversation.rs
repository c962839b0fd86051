//! Conversations as JSON.

use nestling::{Conversation, Message, ToolSchema};
use serde_json::{Map, Value};

use crate::error::Failure;

/// A conversation without its tools, and the tools. The choice of tools decides which of them the model sees.
#[derive(Debug, Default)]
pub(crate) struct AskedConversation {
    pub conversation: Conversation,
    pub tools: Vec<ToolSchema>,
}

/// Reads `{"messages": [...], "tools": [...], "chat_template_kwargs": {...}}`.
pub(crate) fn read(json: &str) -> Result<AskedConversation, Failure> {
    let wrong = |what: &str, error: &dyn std::fmt::Display| {
        Failure::caller(format!("conversation: {what}: {error}"))
    };
    let mut fields: Map<String, Value> =
        serde_json::from_str(json).map_err(|error| wrong("JSON", &error))?;
    let messages = fields.remove("messages").ok_or_else(|| wrong("messages", &"absent"))?;
    let messages: Vec<Message> =
        serde_json::from_value(messages).map_err(|error| wrong("messages", &error))?;
    let mut conversation = Conversation::new(messages);
    let tools = match fields.remove("tools") {
        None | Some(Value::Null) => Vec::new(),
        Some(tools) => serde_json::from_value(tools).map_err(|error| wrong("tools", &error))?,
    };
    match fields.remove("chat_template_kwargs") {
        None | Some(Value::Null) => {}
        Some(Value::Object(arguments)) => conversation.template_arguments = arguments,
        Some(_) => return Err(wrong("chat_template_kwargs", &"expected an object")),
    }
    match fields.keys().next() {
        Some(unknown) => Err(wrong(unknown, &"unknown")),
        None => Ok(AskedConversation { conversation, tools }),
    }
}
