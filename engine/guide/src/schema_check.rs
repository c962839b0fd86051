//! Checks of schemas before compilation. Schemas are rejected if they are too large or too deep, or if the
//! grammar engine would interpret a keyword differently.

use serde_json::Value;

use crate::error::GuideError;
use crate::limits::{DEPTH_MAX, REPEAT_MAX, SCHEMA_BYTES_MAX};

/// Keywords whose number determines a number of symbols.
const COUNTS: [&str; 6] =
    ["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"];

/// Keywords that hold definitions, which have an effect only if they are referenced.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Role of a value in a schema.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Schema,
    /// A map from names to schemas.
    Schemas,
    Data,
}

/// Checks a schema before compilation.
///
/// # Errors
/// Fails with [`GuideError`] if a limit is exceeded or a keyword is unsupported.
pub(crate) fn check_schema(schema: &Value) -> Result<(), GuideError> {
    check_depth(schema)?;
    GuideError::check("bytes of a schema", schema.to_string().len(), SCHEMA_BYTES_MAX)?;
    let mut path = String::from("#");
    check_value(schema, Role::Schema, &mut path)
}

/// Checks the depth of a schema. This is not recursive, because the depth is not known yet.
fn check_depth(schema: &Value) -> Result<(), GuideError> {
    let mut open = vec![(schema, 1)];
    while let Some((value, depth)) = open.pop() {
        GuideError::check("depth of a schema", depth, DEPTH_MAX)?;
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(map) => open.extend(map.values().map(|item| (item, depth + 1))),
            _ => {}
        }
    }
    Ok(())
}

fn check_value(value: &Value, role: Role, path: &mut String) -> Result<(), GuideError> {
    let length = path.len();
    match (role, value) {
        (Role::Data, _) => {}
        (Role::Schemas, Value::Object(map)) => {
            for (key, item) in map {
                push(path, key);
                check_value(item, Role::Schema, path)?;
                path.truncate(length);
            }
        }
        (Role::Schema, Value::Object(map)) => {
            for (key, item) in map {
                push(path, key);
                check_keyword(key, item, path)?;
                check_value(item, role_of(key), path)?;
                path.truncate(length);
            }
        }
        (_, Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                push(path, &index.to_string());
                check_value(item, role, path)?;
                path.truncate(length);
            }
        }
        _ => {}
    }
    Ok(())
}

fn role_of(key: &str) -> Role {
    match key {
        "properties" | "patternProperties" | "dependentSchemas" => Role::Schemas,
        _ if DEFINITIONS.contains(&key) => Role::Schemas,
        "enum" | "const" | "default" | "examples" | "required" | "type" => Role::Data,
        _ => Role::Schema,
    }
}

fn check_keyword(key: &str, value: &Value, path: &str) -> Result<(), GuideError> {
    let unsupported = |reason: &str| {
        Err(GuideError::Unsupported { place: path.to_owned(), reason: reason.to_owned() })
    };
    if key == "x-guidance" {
        // Such options could disable keywords of the schema.
        return unsupported("options of the grammar engine are not taken from schemas");
    }
    if COUNTS.contains(&key) {
        let limit = REPEAT_MAX;
        match value.as_f64() {
            Some(found) if found > limit as f64 => {
                let reason = format!("at most {limit} repetitions are supported, found {found}");
                return unsupported(&reason);
            }
            Some(_) => {}
            None => return unsupported("expected a number"),
        }
    }
    Ok(())
}

fn push(path: &mut String, key: &str) {
    path.push('/');
    path.push_str(&key.replace('~', "~0").replace('/', "~1"));
}
