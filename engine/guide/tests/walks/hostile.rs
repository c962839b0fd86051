//! Malicious schemas and grammars: each is rejected with a reason.

use nestling_guide::{Guide, GuideError};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::walker::*;
use nestling_text::OutputFormat;

#[track_caller]
fn refused(guide: Result<Guide, GuideError>, words: &str) {
    let error = guide.map(drop).unwrap_err().to_string();
    assert!(error.contains(words), "{error}");
    assert!(error.len() < 2000, "{} bytes of an error", error.len());
}

fn nested(depth: usize) -> Value {
    (0..depth).fold(json!({}), |inner, _| json!({ "items": inner }))
}

#[test]
fn what_is_too_much_is_refused() {
    refused(Guide::json_schema(&nested(200)), "depth of a schema");
    refused(Guide::json_schema_text(&" ".repeat(300 << 10)), "bytes of a schema");
    let long = json!({ "enum": ["x".repeat(300 << 10)] });
    refused(Guide::json_schema(&long), "bytes of a schema");
    refused(Guide::json_schema(&json!({ "minItems": 1e12 })), "repetitions");
    refused(Guide::regex(&"(".repeat(100)), "depth of brackets");
    refused(Guide::regex("a{99999}"), "repetitions");
    refused(Guide::regex(&"a".repeat(20 << 10)), "bytes of a regular expression");
    refused(Guide::lark(&"start: \"a\"\n".repeat(10_000)), "bytes of a grammar");
    refused(Guide::lark(&("start: ".to_owned() + &"[".repeat(100))), "depth of brackets");
}

/// Schemas that took the grammar engine many seconds and hundreds of megabytes, or did not finish.
#[test]
fn schemas_with_large_automata_are_refused_before_they_are_compiled() {
    let all = |key: &str, values: Vec<Value>| {
        let all: Vec<_> = values.into_iter().map(|value| json!({ key: value })).collect();
        json!({ "allOf": all })
    };
    let multiples = all("multipleOf", vec![97.into(), 89.into(), 83.into(), 79.into()]);
    let counts = all("pattern", (1..=40).map(|n| format!("a{{{n}}}").into()).collect());
    let wide = all("pattern", (1..=16).map(|n| format!(".*a.{{{n}}}b.*").into()).collect());
    for (schema, words) in [
        (multiples, "common multiple of multipleOf"),
        (json!({ "multipleOf": 999_983 }), "common multiple of multipleOf"),
        (counts, "patterns of one value"),
        (wide, "patterns of one value"),
    ] {
        refused(Guide::json_schema(&json!({ "properties": { "x": schema } })), words);
        refused(Guide::json_schema(&schema), words);
    }
}

/// The same automata in Lark's syntax, where the size of the automaton is known only while it is built.
#[test]
fn grammars_with_large_automata_are_refused_within_the_fuel_of_a_compilation() {
    let multiples: Vec<_> = [97, 89, 83, 79].map(|n| json!({ "multipleOf": n })).into();
    let json = format!("start: %json {}", json!({ "type": "integer", "allOf": multiples }));
    let wide: Vec<_> = (1..=16).map(|n| format!("/.*a.{{{n}}}b.*/")).collect();
    let wide = format!("start: WIDE\nWIDE: {}", wide.join(" & "));
    refused(Guide::lark(&json), "too much work");
    refused(Guide::lark(&wide), "fuel exhausted");
    let few = "start: FEW\nFEW: /.*a.{1}b.*/ & /.*a.{2}b.*/";
    assert!(Guide::lark(few).is_ok());
}

#[test]
fn what_cannot_be_kept_to_is_refused_by_name() {
    for (schema, words) in [
        (json!({ "uniqueItems": 1 }), "uniqueItems"),
        (json!({ "not": {} }), "no value is valid"),
        (json!({ "not": { "pattern": "a" }, "type": "string" }), "leaves no value"),
        (json!({ "if": {}, "then": false }), "leaves no value"),
        (json!({ "minContains": "1" }), "minContains"),
        (json!({ "dependentRequired": { "a": "b" } }), "dependentRequired"),
        (json!({ "allOf": [] }), "allOf"),
        (json!({ "propertyNames": { "format": "email" } }), "propertyNames"),
        (json!({ "$recursiveRef": "#" }), "$recursiveRef"),
        (json!({ "$ref": "#nowhere" }), "the anchor does not exist"),
        (json!({ "$ref": "https://example.com/x" }), "https://example.com/x"),
        (json!({ "$ref": "#/$defs/absent" }), "absent"),
        (json!({ "x-guidance": { "lenient": true }, "not": {} }), "x-guidance"),
        (json!({ "type": "strin" }), "strin"),
        (json!([]), "an object or true"),
        (json!(false), "no value is valid"),
        (json!({ "type": "string", "allOf": [{ "type": "null" }] }), "no value is valid"),
        (json!({ "pattern": "(?=a)" }), "cannot be compiled"),
    ] {
        refused(Guide::json_schema(&schema), words);
    }
    refused(Guide::json_schema_text("{"), "EOF");
    refused(Guide::regex("a("), "cannot be compiled: unclosed group");
    refused(Guide::lark("start: nothing"), "cannot be compiled");
    refused(Guide::lark(""), "cannot be compiled");
}

/// Conditions that each double the number of combinations, and definitions that refer twice to the next one.
#[test]
fn schemas_that_grow_as_they_are_rewritten_are_refused() {
    let condition = json!({ "if": { "required": ["a"] }, "then": { "required": ["b"] } });
    let ways = json!({ "allOf": vec![condition; 40], "unevaluatedProperties": false });
    refused(Guide::json_schema(&ways), "ways in which");
    let name = |at: usize| format!("#/$defs/a{at}");
    let mut definitions: serde_json::Map<String, Value> = (0..60)
        .map(|at| {
            let next = json!({ "$ref": name(at + 1) });
            (
                format!("a{at}"),
                json!({ "anyOf": [next, { "not": next }, { "oneOf": [next, next] }] }),
            )
        })
        .collect();
    definitions.insert("a60".into(), json!({ "type": "string" }));
    let schema = json!({ "not": { "$ref": name(0) }, "$defs": definitions });
    refused(Guide::json_schema(&schema), "rewritten");
    let values: Vec<usize> = (0..20_000).collect();
    let options: Vec<Value> = (0..60).map(|_| json!({ "enum": values.get(..400) })).collect();
    refused(Guide::json_schema(&json!({ "oneOf": options })), "rewritten");
    let unlike: Vec<Value> = (0..400).map(|at| json!({ "minLength": at })).collect();
    refused(Guide::json_schema(&json!({ "oneOf": unlike })), "rewritten");
    drop(Guide::json_schema(&json!({ "not": { "enum": values } })));
}

/// A property may have the name of an option.
#[test]
fn names_of_properties_are_free() {
    let schema = json!({ "type": "object", "properties": { "x-guidance": { "type": "null" } } });
    Guide::json_schema(&schema).unwrap();
}

/// Keywords with arbitrary values.
fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(true)),
        Just(json!({})),
        (-5..70_i64).prop_map(|number| json!(number)),
        any::<f64>().prop_map(|number| json!(number)),
        "[a-z#/$^*+?()\\[\\]{}|\\\\é]{0,12}".prop_map(Value::from),
    ];
    let keyword = prop::sample::select(vec![
        "type",
        "enum",
        "const",
        "properties",
        "required",
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "additionalProperties",
        "patternProperties",
        "allOf",
        "anyOf",
        "oneOf",
        "$ref",
        "$defs",
        "minimum",
        "maximum",
        "multipleOf",
        "pattern",
        "format",
        "minLength",
        "maxLength",
        "a",
        "minProperties",
        "exclusiveMinimum",
        "$schema",
        "$id",
        "not",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
        "if",
        "then",
        "else",
        "propertyNames",
        "dependentSchemas",
        "dependentRequired",
        "unevaluatedProperties",
        "unevaluatedItems",
    ]);
    let kinds = ["string", "object", "array", "number", "integer", "null", "boolean"];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((keyword.clone(), inner), 0..4).prop_map(|entries| {
                entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
            }),
            prop::sample::select(kinds.to_vec()).prop_map(|kind| json!({ "type": kind })),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    /// Accepted schemas give valid JSON or stop with an error, and never panic.
    #[test]
    fn any_schema_is_kept_to_or_refused(schema in any_schema(), seed in any::<u64>()) {
        let Ok(guide) = Guide::json_schema(&schema) else { return Ok(()) };
        let tokenizer = tokenizer(&["<|end|>"], &[]);
        let Ok(walk) = walk(&guide, &tokenizer, &OutputFormat::plain(), seed, 120) else {
            return Ok(());
        };
        let Some(value) = json_of(walk) else { return Ok(()) };
        if let Ok(validator) = jsonschema::draft202012::new(&schema) {
            prop_assert!(validator.is_valid(&value), "{schema} gave {value}");
        }
    }

    #[test]
    fn any_text_is_a_grammar_or_refused(text in "[ -~\n]{0,60}", seed in any::<u64>()) {
        let tokenizer = tokenizer(&["<|end|>"], &[]);
        let start = format!("start: {text}");
        let guides = [Guide::regex(&text), Guide::lark(&text), Guide::lark(&start)];
        for guide in guides.into_iter().flatten() {
            drop(walk(&guide, &tokenizer, &OutputFormat::plain(), seed, 30));
        }
    }
}

/// Returns a grammar whose rules or terminals, named with `letter`, each refer to the next one.
fn chain(letter: char, count: usize, brackets: usize) -> String {
    let (open, close) = ("(".repeat(brackets), ")".repeat(brackets));
    let links: String = (0..count)
        .map(|n| format!("{letter}{n}: \"y\" {open}{letter}{}{close} | \"x\"\n", n + 1))
        .collect();
    format!("start: {letter}0\n{links}{letter}{count}: \"z\"\n")
}

/// The grammar engine compiles nested definitions recursively.
#[test]
fn long_chains_of_definitions_do_not_exhaust_the_stack() {
    let tokenizer = tokenizer(&["<|end|>"], &[]);
    for letter in ['a', 'A'] {
        for (count, brackets) in [(1000, 0), (1000, 8), (120, 60)] {
            let text = chain(letter, count, brackets);
            let guide = Guide::lark(&text);
            assert!(letter == 'A' || count < 1000 || guide.is_ok(), "{count} {brackets}");
            if let Ok(guide) = guide {
                // The masks of later steps must not exhaust it either.
                let _ = walk(&guide, &tokenizer, &OutputFormat::plain(), 7, 50);
            }
        }
        let error = Guide::lark(&chain(letter, 2500, 0)).unwrap_err();
        assert!(matches!(error, GuideError::Limit { .. }), "{error}");
        let error = Guide::lark(&chain(letter, 400, 30)).unwrap_err();
        assert!(matches!(error, GuideError::Limit { .. }), "{error}");
    }
}

/// Definitions are counted by lines, so that none may begin elsewhere.
#[test]
fn a_definition_begins_a_line() {
    assert!(Guide::lark("start: a\na: \"x\"").is_ok());
    for text in [
        "start: a a: \"x\"",
        "start: a\na\n: \"x\"",
        "start: a\na\r: \"x\"",
        "start: a\n# x\ra: \"x\"",
    ] {
        assert!(Guide::lark(text).is_err(), "{text:?}");
    }
}

#[test]
fn long_chains_of_references_do_not_exhaust_the_stack() {
    let tokenizer = tokenizer(&["<|end|>"], &[]);
    let item = |n: usize| json!({ "$ref": format!("#/$defs/a{n}") });
    for link in ["allOf", "anyOf", "items", "properties"] {
        let links = (0..3000).map(|n| {
            let next = match link {
                "items" => json!({ "type": "array", "items": item(n + 1) }),
                "properties" => json!({ "type": "object", "properties": { "a": item(n + 1) }, "required": ["a"] }),
                _ => json!({ (link): [item(n + 1), { "type": ["null", "array"] }] }),
            };
            (format!("a{n}"), next)
        });
        let mut definitions: serde_json::Map<_, _> = links.collect();
        definitions.insert("a3000".into(), json!({ "type": "null" }));
        let schema = json!({ "$ref": "#/$defs/a0", "$defs": definitions });
        if let Ok(guide) = Guide::json_schema(&schema) {
            let _ = walk(&guide, &tokenizer, &OutputFormat::plain(), 7, 50);
        }
        let _ = Guide::lark(&format!("start: %json {schema}"));
    }
}
