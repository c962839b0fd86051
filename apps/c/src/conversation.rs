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
    let messages: Vec<Message> = list("messages", messages, serde_json::from_value)?;
    let mut conversation = Conversation::new(messages);
    let tools = match fields.remove("tools") {
        None | Some(Value::Null) => Vec::new(),
        Some(tools) => list("tools", tools, serde_json::from_value)?,
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

#[cfg(test)]
mod tests {
    #[test]
    fn errors_name_the_message_or_tool() {
        let user = r#"{"role": "user", "content": "a"}"#;
        let tools = |tools: &str| format!(r#"{{"messages": [], "tools": {tools}}}"#);
        for (json, place) in [
            (
                format!(r#"{{"messages": [{user}, {{"role": "user", "content": 7}}]}}"#),
                "messages[1]: ",
            ),
            (r#"{"messages": 7}"#.to_owned(), "messages: expected a list"),
            (tools("[7]"), "tools[0]: tool: expected an object, found 7"),
            (tools("7"), "tools: expected a list"),
            (
                tools(r#"[{"function": {"name": "a"}}, {"function": {}}]"#),
                "tools[1]: `name`: missing",
            ),
            (
                tools(r#"[{"type": "web_search", "function": {"name": "a"}}]"#),
                "tools[0]: `type`: expected `function`, found",
            ),
            (
                tools(r#"[{"function": {"name": "a", "parameters": []}}]"#),
                "tools[0]: `parameters`: expected an object, found []",
            ),
            (r#"{"messages": [], "chat_template_kwargs": 7}"#.to_owned(), "chat_template_kwargs"),
            (
                r#"{"messages": [{"role": "assistant", "tool_calls":
                    [{"function": {"name": "a", "arguments": 7}}]}]}"#
                    .to_owned(),
                "messages[0]: `arguments`: expected an object or a text, found 7",
            ),
        ] {
            let failure = format!("{:?}", super::read(&json).unwrap_err());
            assert!(failure.contains(&format!("conversation: {place}")), "{failure}");
        }
    }
}
