//! Builders for JSON schemas.

use serde_json::{Map, Value, json};

use crate::field_rules::{Class, FieldRule, Kind, Neutral};
use crate::limits::{BIASES_MAX, BODY_BYTES_MAX, SAMPLERS_MAX, SCHEMA_BYTES_MAX, TOKENS_MAX};
use crate::samplers::{NUMBER_MAX, NUMBERS};
use crate::sampling::PENALTIES;
use nestling::SamplerKind;
use nestling::guide::limits::CHOICES_MAX;

/// Returns the schema of an object in a request. Optional fields may be null, and fields that are not listed
/// have no effect.
pub(super) fn object(required: &[&str], properties: Value) -> Value {
    let Value::Object(properties) = properties else { return Value::Null };
    let each = properties.into_iter().map(|(name, schema)| match required.contains(&&*name) {
        true => (name, schema),
        false => (name, or_null(schema)),
    });
    let properties: Map<String, Value> = each.collect();
    json!({
        "type": "object", "required": required, "properties": properties,
    })
}

/// Adds the fields of a table to the properties of an object.
pub(super) fn with_rules(properties: Value, tables: &[&[FieldRule]]) -> Value {
    let Value::Object(mut all) = properties else { return Value::Null };
    let rules = tables.iter().copied().flatten();
    all.extend(rules.map(|rule| (rule.name.to_owned(), of_rule(rule))));
    all.into()
}

fn of_rule(rule: &FieldRule) -> Value {
    match rule.class {
        Class::Hint => {
            let mut schema = match type_of(rule.kind) {
                Some(kind) => json!({ "type": kind }),
                None => json!({}),
            };
            schema["description"] = "Accepted without effect.".into();
            schema
        }
        Class::Refused(why) => {
            json!({ "enum": neutral(rule), "description": format!("Not supported: {why}.") })
        }
    }
}

fn type_of(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Any => None,
        Kind::Flag => Some("boolean"),
        Kind::Number => Some("number"),
        Kind::Text => Some("string"),
        Kind::List => Some("array"),
        Kind::Object => Some("object"),
    }
}

/// Returns the values of a field that ask for what happens anyway.
fn neutral(rule: &FieldRule) -> Vec<Value> {
    let empty = match rule.kind {
        _ if matches!(rule.neutral, Neutral::True) => vec![],
        Kind::Any => vec![json!(""), json!(false), json!([]), json!({})],
        Kind::Flag => vec![json!(false)],
        Kind::Number => vec![],
        Kind::Text => vec![json!("")],
        Kind::List => vec![json!([])],
        Kind::Object => vec![json!({})],
    };
    let more: Vec<Value> = match rule.neutral {
        Neutral::Empty => vec![],
        Neutral::True => vec![json!(true)],
        Neutral::Numbers(numbers) => numbers.iter().map(|number| json!(number)).collect(),
        Neutral::Words(words) => words.iter().map(|word| json!(word)).collect(),
    };
    [empty, more, vec![Value::Null]].concat()
}

/// Adds the samplers to the properties of an object.
pub(super) fn with_samplers(properties: Value, temperature_max: f64) -> Value {
    let Value::Object(mut all) = properties else { return Value::Null };
    let penalty = number(*PENALTIES.start(), *PENALTIES.end());
    for (name, schema) in [
        ("temperature", number(0.0, temperature_max)),
        ("top_p", number(0.0, 1.0)),
        ("top_k", from_minus_one(u64::from(u32::MAX))),
        ("min_p", number(0.0, 1.0)),
        ("repetition_penalty", penalty.clone()),
        ("repeat_penalty", penalty),
        ("frequency_penalty", number(-2.0, 2.0)),
        ("presence_penalty", number(-2.0, 2.0)),
        ("seed", json!({ "type": "integer", "minimum": i64::MIN, "maximum": u64::MAX })),
        (
            "logit_bias",
            json!({
                "type": "object", "maxProperties": BIASES_MAX, "additionalProperties": number(-100.0, 100.0),
            }),
        ),
    ] {
        all.insert(name.into(), schema);
    }
    for field in NUMBERS {
        all.insert(field.name.into(), number(0.0, field.most));
    }
    all.insert("top_n_sigma".into(), number(-1.0, NUMBER_MAX));
    all.insert("repeat_last_n".into(), from_minus_one(TOKENS_MAX));
    all.insert("dry_penalty_last_n".into(), from_minus_one(TOKENS_MAX));
    all.insert("dry_allowed_length".into(), integer(0, TOKENS_MAX));
    all.insert("mirostat".into(), json!({ "type": "integer", "enum": [0, 2] }));
    let breaker = json!({ "type": "string", "minLength": 1, "maxLength": 40 });
    all.insert("dry_sequence_breakers".into(), list(&breaker, 0, SAMPLERS_MAX));
    let kinds = SamplerKind::DEFAULT_ORDER.map(SamplerKind::name);
    all.insert("samplers".into(), list(&word(&kinds), 0, SAMPLERS_MAX));
    all.into()
}

/// Adds the output constraints of llama.cpp's and vLLM's servers to the properties of an object.
pub(super) fn with_constraints(properties: Value) -> Value {
    let Value::Object(mut all) = properties else { return Value::Null };
    let json = any_of(&[component("Schema"), text(SCHEMA_BYTES_MAX)]);
    let choice = list(&json!({ "type": "string" }), 1, CHOICES_MAX);
    let kinds = json!({
        "json": json, "regex": text(BODY_BYTES_MAX), "choice": choice, "grammar": text(BODY_BYTES_MAX),
    });
    for name in ["json", "regex", "choice", "grammar"] {
        all.insert(format!("guided_{name}"), kinds[name].clone());
    }
    all.insert("json_schema".into(), kinds["json"].clone());
    all.insert("grammar".into(), kinds["grammar"].clone());
    all.insert("structured_outputs".into(), object(&[], kinds));
    all.into()
}

/// Returns the schema of a limit on tokens, of which -1 and -2 are none.
pub(super) fn token_limit() -> Value {
    json!({ "type": "integer", "minimum": -2, "maximum": TOKENS_MAX })
}

/// Returns the schema of a whole number of at least -1.
pub(super) fn from_minus_one(most: u64) -> Value {
    json!({ "type": "integer", "minimum": -1, "maximum": most })
}

/// Returns the schema of an object with at least these fields.
pub(super) fn answer(required: &[&str], properties: Value) -> Value {
    json!({ "type": "object", "required": required, "properties": properties })
}

fn or_null(mut schema: Value) -> Value {
    let Some(kind @ Value::String(_)) = schema.get("type").cloned() else {
        let is_limited = ["enum", "anyOf", "$ref"].iter().any(|key| schema.get(key).is_some());
        let has_null = schema["enum"].as_array().is_some_and(|all| all.contains(&Value::Null));
        return match is_limited && !has_null {
            true => json!({ "anyOf": [schema, { "type": "null" }] }),
            false => schema,
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
