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
}

impl CallForm {
    /// The form that a template's source shows.
    pub fn detect(template: &str) -> Self {
        match template.contains("<arg_key>") {
            true => Self::ArgumentTags,
            false => Self::Json,
        }
    }

    /// The call that stands between the tags, if there is one; `index` counts the calls before it.
    pub fn parse(self, text: &str, index: usize) -> Option<ToolCall> {
        let (name, arguments) = match self {
            Self::Json => json(text)?,
            Self::ArgumentTags => argument_tags(text)?,
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
