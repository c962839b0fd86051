//! How models write tool calls between their tags.

use serde_json::{Map, Value};

use super::messages::ToolCall;

/// What stands between the tags of a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallForm {
    /// A JSON object with `name` and `arguments`, as Qwen3 and Hermes write.
    #[default]
    Json,
    /// The name, then `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>` for every argument, as
    /// GLM writes. A value is JSON, or else text.
    ArgumentTags,
    /// `<function=NAME>`, then `<parameter=KEY>`, the value and `</parameter>` for every argument,
    /// `</function>`, as Qwen3-Coder and Qwen3.5 write. A value is JSON, or else text; the line
    /// breaks around it belong to the form.
    FunctionTags,
}

impl CallForm {
    /// The form that a template's source shows.
    pub fn detect(template: &str) -> Self {
        match template {
            _ if template.contains("<arg_key>") => Self::ArgumentTags,
            _ if template.contains("<function=") => Self::FunctionTags,
            _ => Self::Json,
        }
    }

    /// The call that stands between the tags, if there is one; `index` counts the calls before it.
    pub fn parse(self, text: &str, index: usize) -> Option<ToolCall> {
        let (name, arguments) = match self {
            Self::Json => json(text)?,
            Self::ArgumentTags => argument_tags(text)?,
            Self::FunctionTags => function_tags(text.trim())?,
        };
        Some(ToolCall { id: format!("call_{index}"), name, arguments })
    }
}

/// `{"name": ..., "arguments": {...}}`.
fn json(text: &str) -> Option<(String, Value)> {
    let Value::Object(mut map) = serde_json::from_str(text.trim()).ok()? else { return None };
    let Some(Value::String(name)) = map.remove("name") else { return None };
    let arguments = map.remove("arguments").or_else(|| map.remove("parameters"));
    Some((name, arguments.unwrap_or_else(|| Value::Object(Map::new()))))
}

fn argument_tags(text: &str) -> Option<(String, Value)> {
    let (name, mut rest) = text.split_at(text.find("<arg_key>").unwrap_or(text.len()));
    let name = name.trim();
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '<') {
        return None;
    }
    let mut arguments = Map::new();
    while !rest.trim().is_empty() {
        let (key, after) = rest.trim_start().strip_prefix("<arg_key>")?.split_once("</arg_key>")?;
        let value = after.trim_start().strip_prefix("<arg_value>")?;
        let (value, after) = value.split_once("</arg_value>")?;
        let parsed = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        arguments.insert(key.trim().into(), parsed);
        rest = after;
    }
    Some((name.into(), Value::Object(arguments)))
}

fn function_tags(text: &str) -> Option<(String, Value)> {
    let inside = text.strip_prefix("<function=")?.strip_suffix("</function>")?;
    let (name, mut rest) = inside.split_once('>')?;
    let mut arguments = Map::new();
    while !rest.trim().is_empty() {
        let (key, after) = rest.trim_start().strip_prefix("<parameter=")?.split_once('>')?;
        let (value, after) = after.split_once("</parameter>")?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        arguments.insert(key.into(), untyped(value));
        rest = after;
    }
    (!name.is_empty()).then(|| (name.into(), Value::Object(arguments)))
}

/// A value whose type is not written: JSON, Python's words for its constants, or else text.
fn untyped(text: &str) -> Value {
    match text {
        "True" => Value::Bool(true),
        "False" => Value::Bool(false),
        "None" => Value::Null,
        _ => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
    }
}
