//! Schemas with keywords that the grammar engine lacks: output is valid, and there is some.

use nestling_guide::{Guide, GuideError};
use nestling_text::OutputFormat;
use serde_json::{Value, json};

use super::walker::*;

fn schemas() -> Vec<Value> {
    vec![
        json!({"type": "integer", "not": {"enum": [1, 2, 3]}}),
        json!({"not": {"type": ["string", "object", "array"]}}),
        json!({"type": "object", "properties": {"a": {"type": "integer"}}, "not": {"required": ["b"]}}),
        json!({"type": "object", "properties": {"kind": {"enum": ["a", "b"]}}, "required": ["kind"],
            "if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["x"]},
            "else": {"properties": {"kind": true}, "additionalProperties": false}}),
        json!({"type": "array", "contains": {"type": "null"}, "minContains": 2, "maxContains": 3, "maxItems": 6}),
        json!({"type": "array", "prefixItems": [{"const": 1}, {"const": "a"}], "contains": {"const": true}}),
        json!({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": true, "minItems": 2}),
        json!({"type": "array", "uniqueItems": true, "minItems": 2}),
        json!({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "boolean"}},
            "dependentRequired": {"a": ["b"]}, "additionalProperties": false}),
        json!({"type": "object", "properties": {"a": {"type": "null"}},
            "dependentSchemas": {"a": {"required": ["c"], "properties": {"c": {"const": 1}}}}}),
        json!({"type": "object", "propertyNames": {"pattern": "^[a-c]{1,3}$"}, "minProperties": 1}),
        json!({"type": "object", "propertyNames": {"enum": ["a", "b"]}}),
        json!({"type": "object", "allOf": [{"properties": {"a": {"type": "integer"}}}],
            "anyOf": [{"properties": {"b": {"type": "null"}}, "required": ["b"]}, {"required": ["a"]}],
            "unevaluatedProperties": false}),
        json!({"type": "array", "allOf": [{"prefixItems": [{"type": "null"}]}],
            "unevaluatedItems": {"type": "boolean"}}),
        json!({"oneOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 5}]}),
        json!({"oneOf": [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}]}),
        json!({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, "maxProperties": 2}),
        json!({"$id": "https://example.com/a/", "$ref": "b%20c#x",
            "$defs": {"d": {"$id": "b%20c", "$defs": {"e": {"$anchor": "x", "type": "boolean"}}}}}),
        json!({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "array", "items": {"$ref": "#/$defs/a~1b%25"}}}}),
        json!({"type": "array", "items": {"$dynamicRef": "#node"},
            "$defs": {"n": {"$dynamicAnchor": "node", "type": "null"}}}),
        json!({"type": "string", "format": "json-pointer"}),
        json!({"type": "array", "items": {"type": "integer", "format": "int64", "minimum": 0}, "maxItems": 2}),
        json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "integer", "format": "int32"}),
        json!({"type": "object", "minProperties": 1, "additionalProperties": {"type": "null"}}),
        json!({"type": "array", "minItems": 2.0, "maxItems": 2.0, "items": {"const": 4.0}}),
    ]
}

#[test]
fn what_is_written_is_valid() {
    let tokenizer = tokenizer(&["<|end|>"], &[]);
    for schema in schemas() {
        let guide = Guide::json_schema(&schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
        let validator = jsonschema::draft202012::new(&schema).unwrap();
        let mut whole = 0;
        for seed in 0..40 {
            let walk = walk(&guide, &tokenizer, &OutputFormat::plain(), seed, 300);
            let walk = walk.unwrap_or_else(|error| panic!("{schema}: {error}"));
            let Some(value) = json_of(walk) else { continue };
            assert!(validator.is_valid(&value), "{schema} gave {value}");
            whole += 1;
        }
        assert!(whole > 5, "{schema}: {whole} whole");
    }
}

/// All alternatives that exclude each other by a member are retained.
#[test]
fn alternatives_that_exclude_each_other_lose_nothing() {
    let of = |kind: &str| {
        json!({"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"],
        "additionalProperties": false})
    };
    let schema = json!({"oneOf": [{"$ref": "#/$defs/a"}, of("b")], "$defs": {"a": of("a")}});
    let guide = Guide::json_schema(&schema).unwrap();
    let tokenizer = tokenizer(&["<|end|>"], &[]);
    let all: Vec<Value> = (0..40)
        .filter_map(|seed| {
            json_of(walk(&guide, &tokenizer, &OutputFormat::plain(), seed, 200).unwrap())
        })
        .collect();
    for kind in ["a", "b"] {
        assert!(all.contains(&json!({"kind": kind})), "{kind}");
    }
}

#[test]
fn a_schema_without_values_has_an_error_of_its_own() {
    for schema in [
        json!(false),
        json!({"not": true}),
        json!({"allOf": [{"type": "null"}, false]}),
        json!({"enum": []}),
        json!({"minLength": 3, "maxLength": 2, "type": "string"}),
    ] {
        let error = Guide::json_schema(&schema).unwrap_err();
        assert!(matches!(error, GuideError::Unsatisfiable { .. }), "{schema}: {error}");
    }
}

/// Free names might be repeated, and an object with repeated names has fewer members once it is parsed.
#[test]
fn members_without_names_are_not_counted() {
    let free = |least: u64, more: Value| {
        let mut schema = json!({"type": "object", "minProperties": least});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Guide::json_schema(&schema)
    };
    let named = json!({"properties": {"a": true, "b": true, "c": false}, "required": ["b", "d"]});
    assert!(free(1, json!({})).is_ok() && free(4, named.clone()).is_ok());
    for refused in
        [free(2, json!({})), free(5, named), free(2, json!({"patternProperties": {"^x": true}}))]
    {
        let error = refused.unwrap_err();
        let GuideError::Unsupported { place, .. } = &error else { panic!("{error}") };
        assert_eq!(place, "minProperties");
    }
}
