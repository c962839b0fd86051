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
    let kinds = Kinds::of(schema, DEPTH_MAX);
    (kinds.text && !kinds.other).then_some(TextArgument { or_null: kinds.null })
}

impl Kinds {
    /// Anything: what a schema admits that says nothing of types, or says it by reference.
    const ANY: Self = Self { text: true, null: true, other: true };

    fn of(schema: &Value, depth: usize) -> Self {
        let Some(depth) = depth.checked_sub(1) else { return Self::ANY };
        let list = |name: &str| schema.get(name).and_then(Value::as_array).into_iter().flatten();
        let kinds = match schema.get("type") {
            // What stands beside a type can only narrow it.
            Some(Value::String(kind)) => Self::named(kind),
            Some(Value::Array(kinds)) => kinds
                .iter()
                .filter_map(Value::as_str)
                .map(Self::named)
                .fold(Self::default(), Self::or),
            _ => {
                // Values say of what type they are.
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
