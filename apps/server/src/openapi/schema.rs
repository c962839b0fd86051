//! Builders for JSON schemas.

use serde_json::{Map, Value, json};

/// Returns the schema of an object without other fields. Optional fields may be null.
pub(super) fn object(required: &[&str], properties: Value) -> Value {
    let Value::Object(properties) = properties else { return Value::Null };
    let each = properties.into_iter().map(|(name, schema)| match required.contains(&&*name) {
        true => (name, schema),
        false => (name, or_null(schema)),
    });
    let properties: Map<String, Value> = each.collect();
    json!({
        "type": "object", "required": required, "properties": properties, "additionalProperties": false,
    })
}

/// Returns the schema of an object with at least these fields.
pub(super) fn answer(required: &[&str], properties: Value) -> Value {
    json!({ "type": "object", "required": required, "properties": properties })
}

fn or_null(mut schema: Value) -> Value {
    let Some(kind @ Value::String(_)) = schema.get("type").cloned() else {
        return match schema.as_object().is_some_and(Map::is_empty) {
            true => schema,
            false => json!({ "anyOf": [schema, { "type": "null" }] }),
        };
    };
    schema["type"] = json!([kind, "null"]);
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.push(Value::Null);
    }
    schema
}

pub(super) fn anything() -> Value {
    json!({})
}

pub(super) fn text(bytes_max: usize) -> Value {
    json!({ "type": "string", "maxLength": bytes_max })
}

pub(super) fn word(words: &[&str]) -> Value {
    json!({ "type": "string", "enum": words })
}

pub(super) fn flag() -> Value {
    json!({ "type": "boolean" })
}

pub(super) fn integer(least: u64, most: u64) -> Value {
    json!({ "type": "integer", "minimum": least, "maximum": most })
}

pub(super) fn number(least: f64, most: f64) -> Value {
    json!({ "type": "number", "minimum": least, "maximum": most })
}

pub(super) fn list(items: &Value, least: usize, most: usize) -> Value {
    json!({ "type": "array", "items": items, "minItems": least, "maxItems": most })
}

pub(super) fn any_of(schemas: &[Value]) -> Value {
    json!({ "anyOf": schemas })
}

pub(super) fn component(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}
