//! What the schemas of tools say of arguments whose type a model does not write.

use std::collections::BTreeMap;

use serde_json::Value;

use super::messages::ToolSchema;

/// Deepest nesting of alternatives in the schema of an argument.
const DEPTH_MAX: usize = 8;

/// Arguments that are text, by the names of tools and arguments. A model that writes arguments without their types
/// writes `5` for the text `"5"` too: the tool's schema decides.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ArgumentTypes {
    texts: BTreeMap<String, BTreeMap<String, TextArgument>>,
}

/// An argument that is text and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TextArgument {
    /// But for `null`.
    or_null: bool,
}

/// The types that a schema admits.
#[derive(Debug, Clone, Copy, Default)]
struct Kinds {
    text: bool,
    null: bool,
    other: bool,
}

impl ArgumentTypes {
    /// What the schemas of `tools` say.
    pub fn of(tools: &[ToolSchema]) -> Self {
        let mut texts = BTreeMap::new();
        for tool in tools {
            let function = tool.0.get("function").unwrap_or(&tool.0);
            let properties = function.get("parameters").and_then(|all| all.get("properties"));
            if let (Some(name), Some(Value::Object(properties))) = (tool.name(), properties) {
                let found = properties.iter();
                let found = found.filter_map(|(key, schema)| Some((key.clone(), text(schema)?)));
                texts.insert(name.to_owned(), found.collect());
            }
        }
        Self { texts }
    }

    /// The value of an argument that a model wrote as `text`: text where the schema says so; else JSON, or one of
    /// Python's words for its constants, or else text.
    pub(super) fn value(&self, tool: &str, argument: &str, text: &str) -> Value {
        match self.texts.get(tool).and_then(|arguments| arguments.get(argument)) {
            Some(TextArgument { or_null: true }) if text == "null" => Value::Null,
            Some(_) => text.into(),
            None => untyped(text),
        }
    }
}

/// A value whose type nothing says.
pub(super) fn untyped(text: &str) -> Value {
    match text.trim() {
        "True" => Value::Bool(true),
        "False" => Value::Bool(false),
        "None" => Value::Null,
        _ => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
    }
}

fn text(schema: &Value) -> Option<TextArgument> {
    let mut kinds = Kinds::default();
    kinds.add(schema, DEPTH_MAX);
    (kinds.text && !kinds.other).then_some(TextArgument { or_null: kinds.null })
}

impl Kinds {
    fn add(&mut self, schema: &Value, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else {
            self.other = true;
            return;
        };
        let list = |name: &str| schema.get(name).and_then(Value::as_array).into_iter().flatten();
        match schema.get("type") {
            Some(Value::String(kind)) => self.add_named(kind),
            Some(Value::Array(kinds)) => {
                kinds.iter().filter_map(Value::as_str).for_each(|kind| self.add_named(kind));
            }
            // Values say of what type they are.
            _ => list("enum").chain(schema.get("const")).for_each(|value| match value {
                Value::String(_) => self.text = true,
                Value::Null => self.null = true,
                _ => self.other = true,
            }),
        }
        list("anyOf").chain(list("oneOf")).for_each(|schema| self.add(schema, depth));
    }

    fn add_named(&mut self, kind: &str) {
        match kind {
            "string" => self.text = true,
            "null" => self.null = true,
            _ => self.other = true,
        }
    }
}
