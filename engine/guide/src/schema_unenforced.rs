//! Keywords that are not enforced: lengths that are too large to be counted, and formats that nobody defines.

use serde_json::{Map, Value};

use crate::limits::{COUNTED_LENGTH_MAX, DEPTH_MAX, LENGTH_MAX};

/// Formats of JSON Schema 2020-12.
const FORMATS: [&str; 19] = [
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "idn-email",
    "idn-hostname",
    "ipv4",
    "ipv6",
    "iri",
    "iri-reference",
    "json-pointer",
    "regex",
    "relative-json-pointer",
    "time",
    "uri",
    "uri-reference",
    "uri-template",
    "uuid",
];

/// Keywords whose values are schemas that apply as they are, also after a keyword within is dropped.
const MAPS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
const LISTS: [&str; 3] = ["allOf", "anyOf", "prefixItems"];
const SINGLE: [&str; 2] = ["items", "additionalProperties"];

/// Returns a schema without `maxLength` above [`COUNTED_LENGTH_MAX`] and up to [`LENGTH_MAX`], and without formats
/// that the specification does not define. A text of such a length ends earlier by the limit on tokens, and such a
/// format is only an annotation. Under `not` and in other conditions both stay, and are refused.
pub(crate) fn without_unenforced(schema: &Value) -> Value {
    kept(schema, DEPTH_MAX)
}

fn kept(schema: &Value, depth: usize) -> Value {
    // Deeper schemas are refused later.
    let (Value::Object(map), Some(depth)) = (schema, depth.checked_sub(1)) else {
        return schema.clone();
    };
    let entries = map.iter().filter(|(key, value)| match key.as_str() {
        "maxLength" => !is_long(value),
        "format" => value.as_str().is_none_or(|format| FORMATS.contains(&format)),
        _ => true,
    });
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
        assert_eq!(without_unenforced(&schema(&long)), schema(&plain));
        for kept in [
            json!({ "maxLength": 4096 }),
            json!({ "maxLength": 1e9 }),
            json!({ "not": long }),
            json!({ "if": long }),
            json!({ "const": long }),
        ] {
            assert_eq!(without_unenforced(&kept), kept);
        }
    }

    #[test]
    fn formats_that_nobody_defines_are_annotations() {
        let number = |format: &str| json!({ "type": "integer", "format": format });
        let schema = json!({ "properties": { "format": number("int32") }, "items": number("x") });
        let plain = json!({ "type": "integer" });
        let expected = json!({ "properties": { "format": plain }, "items": plain });
        assert_eq!(without_unenforced(&schema), expected);
        for kept in [number("uuid"), json!({ "format": 7 }), json!({ "not": number("int32") })] {
            assert_eq!(without_unenforced(&kept), kept);
        }
    }
}
