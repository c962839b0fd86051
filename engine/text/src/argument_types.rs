//! Types of tool arguments, taken from the tools' schemas, for models that write arguments without types.

use std::collections::BTreeMap;

use serde_json::Value;

use super::messages::ToolSchema;

/// Maximum nesting of alternatives in the schema of an argument.
const DEPTH_MAX: usize = 8;

/// Text arguments of each tool, keyed by tool name and argument name. A model that writes arguments without
/// types writes `5` for the text `"5"` too, so the tool's schema decides.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ArgumentTypes {
    texts: BTreeMap<String, BTreeMap<String, TextArgument>>,
}

/// An argument that only accepts text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TextArgument {
    /// True if the argument also accepts `null`.
    or_null: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Kinds {
    text: bool,
    null: bool,
    other: bool,
}

impl ArgumentTypes {
    /// Collects the text arguments from the schemas of `tools`.
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

    /// Converts an argument that a model wrote as `text` to a value. The value is text if the schema says so.
    /// Otherwise it is parsed as JSON or as one of Python's constants, and is text if neither parses.
    pub(super) fn value(&self, tool: &str, argument: &str, text: &str) -> Value {
        match self.texts.get(tool).and_then(|arguments| arguments.get(argument)) {
            Some(TextArgument { or_null: true }) if text == "null" => Value::Null,
            Some(_) => text.into(),
            None => untyped(text),
        }
    }
}

/// Converts a value whose type is unknown.
pub(super) fn untyped(text: &str) -> Value {
    match text.trim() {
        "True" => Value::Bool(true),
        "False" => Value::Bool(false),
        "None" => Value::Null,
        _ => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
    }
}

fn text(schema: &Value) -> Option<TextArgument> {
    let kinds = Kinds::of(schema, DEPTH_MAX);
    (kinds.text && !kinds.other).then_some(TextArgument { or_null: kinds.null })
}

impl Kinds {
    /// All types: the result for a schema that states no type or states it by reference.
    const ANY: Self = Self { text: true, null: true, other: true };

    fn of(schema: &Value, depth: usize) -> Self {
        let Some(depth) = depth.checked_sub(1) else { return Self::ANY };
        let list = |name: &str| schema.get(name).and_then(Value::as_array).into_iter().flatten();
        let kinds = match schema.get("type") {
            // Keywords beside `type` can only narrow it.
            Some(Value::String(kind)) => Self::named(kind),
            Some(Value::Array(kinds)) => kinds
                .iter()
                .filter_map(Value::as_str)
                .map(Self::named)
                .fold(Self::default(), Self::or),
            _ => {
                // Constants imply their own type.
                let values = list("enum").chain(schema.get("const")).map(Self::of_value);
                let alternatives = list("anyOf").chain(list("oneOf"));
                let alternatives = alternatives.map(|schema| Self::of(schema, depth));
                values.chain(alternatives).fold(Self::default(), Self::or)
            }
        };
        if kinds.text || kinds.null || kinds.other { kinds } else { Self::ANY }
    }

    fn or(self, more: Self) -> Self {
        Self {
            text: self.text || more.text,
            null: self.null || more.null,
            other: self.other || more.other,
        }
    }

    fn named(kind: &str) -> Self {
        match kind {
            "string" => Self { text: true, ..Self::default() },
            "null" => Self { null: true, ..Self::default() },
            _ => Self { other: true, ..Self::default() },
        }
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::String(_) => Self::named("string"),
            Value::Null => Self::named("null"),
            _ => Self::named("object"),
        }
    }
}
