//! Conversations as JSON, for bindings to other languages.

use serde_json::{Map, Value};

use crate::messages::{Message, ToolSchema};
use crate::template_time::TemplateTime;

/// A conversation as JSON.
///
/// ```
/// use nestling_text::ConversationJson;
///
/// let json = r#"{"messages": [{"role": "user", "content": "Hello"}], "now": 0}"#;
/// let parsed = ConversationJson::parse(json)?;
/// assert!(parsed.messages.len() == 1 && parsed.tools.is_empty());
/// let error = ConversationJson::parse(r#"{"messages": [7]}"#).unwrap_err();
/// assert_eq!(error.place, "messages[0]");
/// # Ok::<(), nestling_text::ConversationJsonError>(())
/// ```
#[derive(Debug, Default)]
pub struct ConversationJson {
    /// Messages, oldest first.
    pub messages: Vec<Message>,
    /// Tools. A choice of tools decides which of them the model sees.
    pub tools: Vec<ToolSchema>,
    /// Additional variables of the chat template.
    pub template_arguments: Map<String, Value>,
    /// Time for templates that print a date.
    pub now: Option<TemplateTime>,
}

/// An invalid part of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("conversation: {place}: {reason}")]
pub struct ConversationJsonError {
    /// Path of the part, such as `messages[2]`.
    pub place: String,
    /// Text with the expected and the found value.
    pub reason: String,
}

impl ConversationJson {
    /// Parses `{"messages": [...], "tools": [...], "chat_template_kwargs": {...}, "now": seconds}`. Messages and
    /// tools are those of the OpenAI API, `chat_template_kwargs` are variables of the chat template, and `now` is
    /// the time that it sees. All but the messages may be absent or null.
    ///
    /// # Errors
    /// Fails for text that is not such JSON, and for other fields.
    pub fn parse(json: &str) -> Result<Self, ConversationJsonError> {
        let mut fields: Map<String, Value> =
            serde_json::from_str(json).map_err(|error| wrong("JSON", error))?;
        let messages = fields.remove("messages").ok_or_else(|| wrong("messages", "absent"))?;
        let messages = list("messages", messages, serde_json::from_value)?;
        let mut parsed = Self { messages, ..Self::default() };
        let mut take = |name| fields.remove(name).filter(|value| !value.is_null());
        if let Some(tools) = take("tools") {
            parsed.tools = list("tools", tools, serde_json::from_value)?;
        }
        match take("chat_template_kwargs") {
            None => {}
            Some(Value::Object(arguments)) => parsed.template_arguments = arguments,
            Some(_) => return Err(wrong("chat_template_kwargs", "expected an object")),
        }
        if let Some(now) = take("now") {
            let seconds = now.as_i64().ok_or_else(|| wrong("now", "expected seconds"))?;
            parsed.now = Some(TemplateTime::from_unix_seconds(seconds));
        }
        match fields.keys().next() {
            Some(unknown) => Err(wrong(unknown, "unknown")),
            None => Ok(parsed),
        }
    }
}

fn wrong(place: &str, reason: impl ToString) -> ConversationJsonError {
    ConversationJsonError { place: place.to_owned(), reason: reason.to_string() }
}

/// Reads a list. Errors name the invalid item, because errors of serde do not contain its index.
fn list<T>(
    name: &str,
    items: Value,
    read: fn(Value) -> serde_json::Result<T>,
) -> Result<Vec<T>, ConversationJsonError> {
    let Value::Array(items) = items else { return Err(wrong(name, "expected a list")) };
    let item = |(index, item): (usize, Value)| {
        read(item).map_err(|error| wrong(&format!("{name}[{index}]"), error))
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
            let failure = super::ConversationJson::parse(&json).unwrap_err().to_string();
            assert!(failure.contains(&format!("conversation: {place}")), "{failure}");
        }
    }
}
