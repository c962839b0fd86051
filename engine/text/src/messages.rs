//! Conversation types, with the field names of the OpenAI chat API, which chat templates use too. The JSON
//! reader is in `wire.rs`.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Map, Value, json};

/// Author of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Role {
    /// Instructions for the whole conversation.
    System,
    /// Instructions of the application, which take precedence over the user's. Templates that do not know the
    /// role get [`Role::System`].
    Developer,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    pub(super) const ALL: [Self; 5] =
        [Self::System, Self::Developer, Self::User, Self::Assistant, Self::Tool];

    /// Returns the role's name in templates and in JSON.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// One part of a message. Images, sound and files are rejected when a message is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
#[non_exhaustive]
pub enum ContentPart {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
}

/// Content of a message: one text, or parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum MessageContent {
    /// One text.
    Text(String),
    /// Several parts; templates get their texts joined with line breaks.
    Parts(Vec<ContentPart>),
}

impl MessageContent {
    /// Returns the whole text. Several parts are joined with line breaks.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => text.into(),
            Self::Parts(parts) => match parts.as_slice() {
                [ContentPart::Text { text }] => text.into(),
                parts => {
                    let texts: Vec<&str> =
                        parts.iter().map(|ContentPart::Text { text }| text.as_str()).collect();
                    texts.join("\n").into()
                }
            },
        }
    }
}

impl From<&str> for MessageContent {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for MessageContent {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// One message of a conversation. Its JSON form is that of the OpenAI chat API.
///
/// The reader also accepts `null` for absent fields, `reasoning` for `reasoning_content`, and `refusal` in
/// place of the content. Content that is not text (images, sound, files) and the deprecated `function_call`
/// are rejected with an error that names them. Other fields are ignored.
///
/// ```
/// use nestling_text::Message;
///
/// let message: Message = serde_json::from_str(r#"{"role": "user", "content": "Hello"}"#)?;
/// assert_eq!(message, Message::user("Hello"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Message {
    /// Author of the message.
    pub role: Role,
    /// Content; absent (`null`) if an assistant only calls tools.
    pub content: Option<MessageContent>,
    /// The assistant's reasoning before its response.
    #[serde(rename = "reasoning_content", skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// Tool calls of the assistant.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Id of the call that this message is the result of, for [`Role::Tool`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Name of the author or of the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Message {
    /// Creates a message that contains only text.
    pub fn new(role: Role, content: impl Into<MessageContent>) -> Self {
        let content = Some(content.into());
        Self { role, content, reasoning: None, tool_calls: vec![], tool_call_id: None, name: None }
    }

    /// Creates a system message.
    pub fn system(content: impl Into<MessageContent>) -> Self {
        Self::new(Role::System, content)
    }

    /// Creates a user message.
    pub fn user(content: impl Into<MessageContent>) -> Self {
        Self::new(Role::User, content)
    }

    /// Creates an assistant message.
    pub fn assistant(content: impl Into<MessageContent>) -> Self {
        Self::new(Role::Assistant, content)
    }

    /// Creates the result of the call `tool_call_id`.
    pub fn tool(tool_call_id: impl Into<String>, content: impl Into<MessageContent>) -> Self {
        Self { tool_call_id: Some(tool_call_id.into()), ..Self::new(Role::Tool, content) }
    }

    /// Returns the message for templates with channels. Text before a tool call becomes part of the
    /// reasoning, because these templates fail on messages with both.
    pub(super) fn reasoned_before_calls(&self) -> Self {
        // Default: absent content is empty.
        let said = self.content.as_ref().map(MessageContent::text).unwrap_or_default();
        match &self.reasoning {
            Some(reasoning) if !self.tool_calls.is_empty() && !said.is_empty() => {
                let reasoning = Some(format!("{reasoning}\n\n{said}"));
                Self { content: None, reasoning, ..self.clone() }
            }
            _ => self.clone(),
        }
    }

    /// Returns the message as a template value with the given `role`. Absent fields are omitted, so that `is
    /// defined` works. `content` is always present, because templates concatenate it unconditionally.
    pub(super) fn template_value(&self, role: &Role, protect: &dyn Fn(&str) -> String) -> Value {
        let mut map = Map::new();
        map.insert("role".into(), role.as_str().into());
        // Default: templates treat absent content as empty.
        let content = self.content.as_ref().map(MessageContent::text).unwrap_or_default();
        map.insert("content".into(), protect(&content).into());
        if let Some(reasoning) = &self.reasoning {
            let reasoning = Value::from(protect(reasoning));
            // gpt-oss reads `thinking`, Solar `reasoning`, all others `reasoning_content`.
            map.insert("thinking".into(), reasoning.clone());
            map.insert("reasoning".into(), reasoning.clone());
            map.insert("reasoning_content".into(), reasoning);
        }
        if !self.tool_calls.is_empty() {
            let calls: Vec<Value> =
                self.tool_calls.iter().map(|call| call.template_value(protect)).collect();
            map.insert("tool_calls".into(), calls.into());
        }
        if let Some(id) = &self.tool_call_id {
            map.insert("tool_call_id".into(), protect(id).into());
        }
        if let Some(name) = &self.name {
            map.insert("name".into(), protect(name).into());
        }
        Value::Object(map)
    }
}

impl From<&str> for Message {
    fn from(text: &str) -> Self {
        Self::user(text)
    }
}

impl From<String> for Message {
    fn from(text: String) -> Self {
        Self::user(text)
    }
}

/// A tool call requested by the model.
///
/// The JSON form is OpenAI's: `{"id", "type": "function", "function": {"name", "arguments"}}`, with the
/// arguments as JSON text. The reader also accepts arguments as an object, and absent arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Id that the tool's result refers to; unique in a conversation.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// Arguments: an object, or text that the template prints unchanged.
    pub arguments: Value,
}

/// Prefix of a call's id, before its number.
const ID_PREFIX: &str = "call_";

impl ToolCall {
    /// Returns the arguments as text for the chat API: JSON without white space. Text that is not JSON is
    /// returned unchanged.
    pub fn arguments_text(&self) -> String {
        match &self.arguments {
            // Invalid JSON written by the model.
            Value::String(text) => text.clone(),
            arguments => arguments.to_string(),
        }
    }

    /// Returns the id of the call with this number in a conversation.
    pub(super) fn numbered_id(number: usize) -> String {
        format!("{ID_PREFIX}{number}")
    }

    /// Returns the id of the call with this number in the form that Kimi-K2 was trained on. Its template
    /// prints ids.
    pub(super) fn function_id(name: &str, number: usize) -> String {
        format!("functions.{name}:{number}")
    }

    /// Returns the smallest number such that no call of a conversation has it or a larger one in its id.
    pub fn next_number(messages: &[Message]) -> usize {
        let calls = messages.iter().flat_map(|message| &message.tool_calls);
        let function_number = |id: &str| {
            let (_, number) = id.strip_prefix("functions.")?.rsplit_once(':')?;
            number.parse().ok()
        };
        let numbers = calls.filter_map(|call| match call.id.strip_prefix(ID_PREFIX) {
            Some(number) => number.parse().ok(),
            None => function_number(&call.id),
        });
        numbers.max().map_or(0, |number: usize| number.saturating_add(1))
    }

    fn template_value(&self, protect: &dyn Fn(&str) -> String) -> Value {
        let mut call = json!({
            "type": "function",
            "function": {
                "name": protect(&self.name),
                "arguments": protect_value(&self.arguments, protect),
            },
        });
        if let (false, Value::Object(map)) = (self.id.is_empty(), &mut call) {
            map.insert("id".into(), protect(&self.id).into());
        }
        call
    }
}

/// A tool that the model may call: `{"type": "function", "function": {name, description, parameters}}`, with
/// the parameters as a JSON schema. The function may also stand alone.
///
/// Deserialization refuses values without a function's name and fields of the wrong type.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct ToolSchema(pub Value);

impl ToolSchema {
    /// Creates a function tool.
    ///
    /// ```
    /// use nestling_text::ToolSchema;
    /// use serde_json::json;
    ///
    /// let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    /// let tool = ToolSchema::function("weather", "Returns the forecast of a city.", parameters);
    /// assert_eq!(tool.name(), Some("weather"));
    /// ```
    pub fn function(name: &str, description: &str, parameters: Value) -> Self {
        Self(json!({
            "type": "function",
            "function": {"name": name, "description": description, "parameters": parameters},
        }))
    }

    /// Returns the function's name, if the schema has one.
    pub fn name(&self) -> Option<&str> {
        self.0.get("function").unwrap_or(&self.0).get("name")?.as_str()
    }
}

/// Applies `protect` to all strings inside `value`, including keys.
pub(super) fn protect_value(value: &Value, protect: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => protect(text).into(),
        Value::Array(items) => {
            items.iter().map(|item| protect_value(item, protect)).collect::<Vec<_>>().into()
        }
        Value::Object(map) => Value::Object(
            map.iter().map(|(key, item)| (protect(key), protect_value(item, protect))).collect(),
        ),
        other => other.clone(),
    }
}
