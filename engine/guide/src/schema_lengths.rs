//! Lengths of texts that are too large to be counted.

use serde_json::{Map, Value};

use crate::limits::{COUNTED_LENGTH_MAX, DEPTH_MAX, LENGTH_MAX};

/// Keywords whose values are schemas that apply as they are, also after a `maxLength` within is dropped.
const MAPS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
const LISTS: [&str; 3] = ["allOf", "anyOf", "prefixItems"];
const SINGLE: [&str; 2] = ["items", "additionalProperties"];

/// Returns a schema without `maxLength` above [`COUNTED_LENGTH_MAX`] and up to [`LENGTH_MAX`]. Such a text ends
/// earlier by the limit on tokens. Under `not` and in other conditions the keyword stays, and is refused.
pub(crate) fn without_long_lengths(schema: &Value) -> Value {
    kept(schema, DEPTH_MAX)
}

fn kept(schema: &Value, depth: usize) -> Value {
    // Deeper schemas are refused later.
    let (Value::Object(map), Some(depth)) = (schema, depth.checked_sub(1)) else {
        return schema.clone();
    };
    let entries = map.iter().filter(|(key, value)| *key != "maxLength" || !is_long(value));
    let entries = entries.map(|(key, value)| {
        let value = match value {
            Value::Object(inner) if MAPS.contains(&key.as_str()) => {
                let each = inner.iter().map(|(name, schema)| (name.clone(), kept(schema, depth)));
                Value::Object(each.collect())
            }
            Value::Array(items) if LISTS.contains(&key.as_str()) => {
                items.iter().map(|schema| kept(schema, depth)).collect()
            }
            value if SINGLE.contains(&key.as_str()) => kept(value, depth),
            value => value.clone(),
        };
        (key.clone(), value)
    });
    Value::Object(entries.collect::<Map<_, _>>())
}

fn is_long(length: &Value) -> bool {
    length
        .as_f64()
        .is_some_and(|length| length > COUNTED_LENGTH_MAX as f64 && length <= LENGTH_MAX as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn long_lengths_are_dropped_where_a_schema_applies_as_it_is() {
        let long = json!({ "type": "string", "maxLength": 65_536 });
        let plain = json!({ "type": "string" });
        let schema = |text: &Value| json!({ "properties": { "maxLength": text }, "anyOf": [text], "items": text });
        assert_eq!(without_long_lengths(&schema(&long)), schema(&plain));
        for kept in [
            json!({ "maxLength": 4096 }),
            json!({ "maxLength": 1e9 }),
            json!({ "not": long }),
            json!({ "if": long }),
            json!({ "const": long }),
        ] {
            assert_eq!(without_long_lengths(&kept), kept);
        }
    }
}
