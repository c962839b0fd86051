//! A conversation, in the field names of the OpenAI chat API, which chat templates read too. How it
//! is read from JSON is in `wire.rs`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Who speaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Role {
    /// Instructions that hold for the whole conversation.
    System,
    /// Instructions of the application, above the user's. Templates that do not know the role get
    /// [`Role::System`].
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    pub(super) const ALL: [Self; 5] =
        [Self::System, Self::Developer, Self::User, Self::Assistant, Self::Tool];

    /// The word that templates compare with.
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

/// One part of a message. Images, sound and files are refused when they are read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
#[non_exhaustive]
pub enum ContentPart {
    /// Words.
    Text {
        /// The words.
        text: String,
    },
}

/// What a message says: one text, or parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum MessageContent {
    /// One text.
    Text(String),
    /// Several parts; templates get the texts joined with line breaks.
    Parts(Vec<ContentPart>),
}

impl MessageContent {
    /// The whole text; several parts are joined with line breaks.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                let texts: Vec<&str> =
                    parts.iter().map(|ContentPart::Text { text }| text.as_str()).collect();
                texts.join("\n")
            }
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

/// One message of a conversation, in JSON that of the OpenAI chat API.
///
/// Read are also `null` for what is absent, `reasoning` for `reasoning_content`, and `refusal` in
/// place of the content. What is no text (images, sound, files) and the deprecated `function_call`
/// are errors that name it; other fields are ignored.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; absent (`null`) where an assistant only calls tools.
    pub content: Option<MessageContent>,
    /// The assistant's reasoning before it answered.
    #[serde(rename = "reasoning_content", skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// The tools that the assistant calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Of a tool's result: the id of the call that it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// A name for the speaker or the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Message {
    /// A message with text and nothing else.
    pub fn new(role: Role, content: impl Into<MessageContent>) -> Self {
        let content = Some(content.into());
        Self { role, content, reasoning: None, tool_calls: vec![], tool_call_id: None, name: None }
    }

    /// Instructions for the whole conversation.
    pub fn system(content: impl Into<MessageContent>) -> Self {
        Self::new(Role::System, content)
    }

    /// What the person says.
    pub fn user(content: impl Into<MessageContent>) -> Self {
        Self::new(Role::User, content)
    }

    /// What the model said.
    pub fn assistant(content: impl Into<MessageContent>) -> Self {
        Self::new(Role::Assistant, content)
    }

    /// The result of the call `tool_call_id`.
    pub fn tool(tool_call_id: impl Into<String>, content: impl Into<MessageContent>) -> Self {
        Self { tool_call_id: Some(tool_call_id.into()), ..Self::new(Role::Tool, content) }
    }

    /// The message as templates of channels take it: what was said before a tool call is part of
    /// the reasoning, since they refuse to print both.
    pub(super) fn reasoned_before_calls(&self) -> Self {
        // Default: a message without content says nothing.
        let said = self.content.as_ref().map(MessageContent::text).unwrap_or_default();
        match &self.reasoning {
            Some(reasoning) if !self.tool_calls.is_empty() && !said.is_empty() => {
                let reasoning = Some(format!("{reasoning}\n\n{said}"));
                Self { content: None, reasoning, ..self.clone() }
            }
            _ => self.clone(),
        }
    }

    /// The message as templates see it, said by `role`. Absent fields are absent, so that `is defined` works;
    /// `content` is always there, because templates concatenate it without asking.
    pub(super) fn template_value(&self, role: &Role, protect: &dyn Fn(&str) -> String) -> Value {
        let mut map = Map::new();
        map.insert("role".into(), role.as_str().into());
        // Default: templates take absent content for an empty one.
        let content = self.content.as_ref().map(MessageContent::text).unwrap_or_default();
        map.insert("content".into(), protect(&content).into());
        if let Some(reasoning) = &self.reasoning {
            let reasoning = Value::from(protect(reasoning));
            // gpt-oss reads `thinking`, Solar `reasoning`, everybody else `reasoning_content`.
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

/// What the person says.
impl From<&str> for Message {
    fn from(text: &str) -> Self {
        Self::user(text)
    }
}

/// What the person says.
impl From<String> for Message {
    fn from(text: String) -> Self {
        Self::user(text)
    }
}

/// One call of a tool, as the model asks for it.
///
/// The wire form is OpenAI's: `{"id", "type": "function", "function": {"name", "arguments"}}`, the
/// arguments a JSON text. Read are arguments as an object too, and nothing for none.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// What a tool's result refers to; unique in a conversation.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// Its arguments: an object, or text that the template prints as it is.
    pub arguments: Value,
}

/// What stands before a call's number in its id.
const ID_PREFIX: &str = "call_";

impl ToolCall {
    /// The arguments as the chat API writes them: JSON without white space, or text that is no JSON as it is.
    pub fn arguments_text(&self) -> String {
        match &self.arguments {
            // What a model wrote that is no JSON.
            Value::String(text) => text.clone(),
            arguments => arguments.to_string(),
        }
    }

    /// The id of a conversation's call with this number.
    pub(super) fn numbered_id(number: usize) -> String {
        format!("{ID_PREFIX}{number}")
    }

    /// The id of a conversation's call with this number, as Kimi-K2 was trained on: its template prints ids.
    pub(super) fn function_id(name: &str, number: usize) -> String {
        format!("functions.{name}:{number}")
    }

    /// The first number whose id, like all after it, no call of a conversation has.
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

/// A tool that the model may call: `{"type": "function", "function": {name, description,
/// parameters}}`, with the parameters as JSON schema.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ToolSchema(pub Value);

impl ToolSchema {
    /// A function tool.
    pub fn function(name: &str, description: &str, parameters: Value) -> Self {
        Self(json!({
            "type": "function",
            "function": {"name": name, "description": description, "parameters": parameters},
        }))
    }

    /// The function's name, where the schema has one.
    pub fn name(&self) -> Option<&str> {
        self.0.get("function").unwrap_or(&self.0).get("name")?.as_str()
    }
}

/// `protect` over every text inside `value`, keys included.
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
