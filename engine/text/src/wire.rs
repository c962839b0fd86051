//! JSON form of messages in the OpenAI chat API.

use std::fmt;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::messages::{ContentPart, Message, MessageContent, Role, ToolCall, ToolSchema};

/// A message as it is read. API fields that only describe an origin (`annotations`) and unknown fields are
/// ignored. Fields that would change the content are read or rejected.
#[derive(Deserialize)]
struct WireMessage {
    role: Role,
    #[serde(default)]
    content: Option<MessageContent>,
    /// Text of a refusal, in place of the content.
    #[serde(default)]
    refusal: Option<String>,
    #[serde(default)]
    reasoning_content: Option<String>,
    /// The name of `reasoning_content` in newer servers; some send both.
    #[serde(default)]
    reasoning: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<ToolCall>>,
    #[serde(default)]
    tool_call_id: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    function_call: Option<Value>,
    #[serde(default)]
    audio: Option<Value>,
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = WireMessage::deserialize(deserializer)?;
        if wire.function_call.is_some() {
            return Err(D::Error::custom(
                "`function_call` is not supported, it has been replaced by `tool_calls`",
            ));
        }
        if wire.audio.is_some() {
            return Err(D::Error::custom("`audio` is not supported, messages are text"));
        }
        let refusal = wire.refusal.filter(|refusal| !refusal.is_empty());
        Ok(Self {
            role: wire.role,
            content: wire.content.or(refusal.map(MessageContent::Text)),
            reasoning: wire.reasoning_content.or(wire.reasoning),
            // Default: `null` and absent mean no calls.
            tool_calls: wire.tool_calls.unwrap_or_default(),
            tool_call_id: wire.tool_call_id,
            name: wire.name,
        })
    }
}

impl<'de> Deserialize<'de> for Role {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        let role = Self::ALL.into_iter().find(|role| role.as_str() == word);
        role.ok_or_else(|| match word.as_str() {
            "function" => D::Error::custom(
                "the role `function` is not supported, it has been replaced by `tool` with a \
                 `tool_call_id`",
            ),
            _ => D::Error::custom(format_args!(
                "the role `{word}` is unknown, expected system, developer, user, assistant or tool"
            )),
        })
    }
}

impl<'de> Deserialize<'de> for MessageContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrParts;

        impl<'de> Visitor<'de> for TextOrParts {
            type Value = MessageContent;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of parts as the content of a message")
            }

            fn visit_str<E>(self, text: &str) -> Result<MessageContent, E> {
                Ok(MessageContent::Text(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<MessageContent, E> {
                Ok(MessageContent::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut parts: A,
            ) -> Result<MessageContent, A::Error> {
                let mut all = Vec::new();
                while let Some(part) = parts.next_element()? {
                    all.push(part);
                }
                Ok(MessageContent::Parts(all))
            }
        }

        deserializer.deserialize_any(TextOrParts)
    }
}

#[derive(Deserialize)]
struct WirePart {
    r#type: String,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    refusal: Option<String>,
}

impl<'de> Deserialize<'de> for ContentPart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let part = WirePart::deserialize(deserializer)?;
        let text = match part.r#type.as_str() {
            "text" => part.text.ok_or_else(|| D::Error::missing_field("text"))?,
            // Text of an assistant's refusal.
            "refusal" => part.refusal.ok_or_else(|| D::Error::missing_field("refusal"))?,
            other => {
                return Err(D::Error::custom(format_args!(
                    "content parts of type `{other}` are not supported, only `text`"
                )));
            }
        };
        Ok(Self::Text { text })
    }
}

#[derive(Serialize, Deserialize)]
struct WireToolCall {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    r#type: Option<String>,
    #[serde(default)]
    function: Option<WireFunction>,
}

#[derive(Serialize, Deserialize)]
struct WireFunction {
    name: String,
    #[serde(default)]
    arguments: Value,
}

const FUNCTION: &str = "function";

impl<'de> Deserialize<'de> for ToolCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = WireToolCall::deserialize(deserializer)?;
        if let Some(other) = wire.r#type.filter(|kind| kind != FUNCTION) {
            return Err(D::Error::custom(format_args!(
                "tool calls of type `{other}` are not supported, only `function`"
            )));
        }
        let function = wire.function.ok_or_else(|| D::Error::missing_field(FUNCTION))?;
        let arguments = read_arguments(function.arguments).map_err(D::Error::custom)?;
        // Default: clients may omit the id of a call.
        Ok(Self { id: wire.id.unwrap_or_default(), name: function.name, arguments })
    }
}

impl Serialize for ToolCall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let arguments = self.arguments_text();
        WireToolCall {
            id: Some(self.id.clone()),
            r#type: Some(FUNCTION.into()),
            function: Some(WireFunction { name: self.name.clone(), arguments: arguments.into() }),
        }
        .serialize(serializer)
    }
}

/// Reads arguments, which are JSON text in the API but an object in templates. Objects are accepted, and
/// absent arguments become an empty object. Text that is not a JSON object stays text.
fn read_arguments(arguments: Value) -> Result<Value, String> {
    match arguments {
        Value::Null => Ok(Value::Object(Map::new())),
        Value::String(text) if text.trim().is_empty() => Ok(Value::Object(Map::new())),
        Value::String(text) => match serde_json::from_str(&text) {
            Ok(object @ Value::Object(_)) => Ok(object),
            _ => Ok(Value::String(text)),
        },
        Value::Object(_) => Ok(arguments),
        other => Err(format!("`arguments`: expected an object or a text, found {other}")),
    }
}

impl<'de> Deserialize<'de> for ToolSchema {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let tool = Value::deserialize(deserializer)?;
        check_tool(&tool).map_err(D::Error::custom)?;
        Ok(Self(tool))
    }
}

/// Checks the types of the fields that the API defines. Others are passed to the chat template.
fn check_tool(tool: &Value) -> Result<(), String> {
    let wrong = |what: &str, expected: &str, found: &Value| {
        Err(format!("{what}: expected {expected}, found {found}"))
    };
    let Value::Object(fields) = tool else { return wrong("tool", "an object", tool) };
    match fields.get("type") {
        // The type of a function that stands alone is not checked: some templates have other ones.
        Some(kind) if fields.contains_key(FUNCTION) && kind != FUNCTION => {
            return wrong("`type`", "`function`", kind);
        }
        _ => {}
    }
    // Default: the function stands alone.
    let function = fields.get(FUNCTION).unwrap_or(tool);
    let Value::Object(function) = function else {
        return wrong("`function`", "an object", function);
    };
    match function.get("name") {
        Some(Value::String(name)) if !name.is_empty() => {}
        Some(other) => return wrong("`name`", "the name of a function", other),
        None => return Err("`name`: missing, expected the name of a function".into()),
    }
    match function.get("description") {
        None | Some(Value::Null | Value::String(_)) => {}
        Some(other) => return wrong("`description`", "a text", other),
    }
    match function.get("parameters") {
        None | Some(Value::Null | Value::Object(_)) => Ok(()),
        Some(other) => wrong("`parameters`", "an object", other),
    }
}
