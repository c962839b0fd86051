//! JSON answers of a model that draws at random end before the limit on tokens.

use nestling_guide::Guide;
use nestling_runtime::{ConstraintCache, ConstraintContext, ConstraintSource, TokenMask};
use nestling_text::OutputFormat;
use serde_json::{Value, json};

use super::walker::*;

/// An answer, and whether it ended before the limit.
struct DrawnAnswer {
    text: String,
    is_whole: bool,
}

/// Draws each token from the allowed ones with equal chances, as the engine does: forced tokens first, and the end as
/// one of the choices. `limit` is reported to the constraint if `is_reported` is set.
fn draw(schema: &Value, seed: u64, limit: usize, is_reported: bool) -> DrawnAnswer {
    let guide = Guide::json_schema(schema).unwrap();
    let (tokenizer, cache) = (tokenizer(&[], &[]), ConstraintCache::default());
    let format = OutputFormat::plain();
    let vocab_size = tokenizer.vocab_size();
    let context = ConstraintContext::new(Some(&tokenizer), vocab_size, &format, &cache);
    let mut constraint = guide.constraint(&context).unwrap();
    constraint.start(None).unwrap();
    let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31));
    let mut mask = TokenMask::none(vocab_size);
    let mut ids = constraint.forced().unwrap();
    ids.iter().for_each(|id| constraint.accept(*id).unwrap());
    let text = |ids: &[u32]| tokenizer.decode(ids, true).unwrap();
    while ids.len() < limit {
        if is_reported {
            constraint.set_tokens_left(limit - ids.len());
        }
        mask.forbid_all();
        constraint.mask(&mut mask).unwrap();
        let allowed: Vec<u32> = (0..vocab_size as u32).filter(|id| mask.allows(*id)).collect();
        let ends = usize::from(constraint.may_end().unwrap());
        let chosen = chance.below(allowed.len() + ends);
        if chosen == allowed.len() {
            return DrawnAnswer { text: text(&ids), is_whole: true };
        }
        let mut next = vec![allowed[chosen]];
        constraint.accept(allowed[chosen]).unwrap();
        for id in constraint.forced().unwrap() {
            constraint.accept(id).unwrap();
            next.push(id);
        }
        ids.extend(next);
        if constraint.is_done().unwrap() {
            return DrawnAnswer { text: text(&ids), is_whole: true };
        }
    }
    DrawnAnswer { text: text(&ids), is_whole: false }
}

fn assert_valid(schema: &Value, text: &str) {
    let Some(value) = json_of(Walk::Whole(text.to_owned())) else { return };
    let validator = jsonschema::draft202012::new(schema).unwrap();
    assert!(validator.is_valid(&value), "{schema}: {text}");
}

#[test]
fn answers_are_closed_before_the_limit() {
    let formats = ["email", "uri", "date-time", "time", "duration", "hostname", "iri", "ipv6"];
    let mut schemas: Vec<Value> =
        formats.map(|name| json!({"type": "string", "format": name})).into();
    schemas.extend([
        json!({}),
        json!({"type": "string"}),
        json!({"type": "number"}),
        json!({"type": "array"}),
        json!({"type": "object"}),
        json!({"type": "array", "items": {"type": "array", "items": {"type": "string"}}}),
        json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array"},
            "c": {"type": "integer"}}, "required": ["a", "b", "c"]}),
        json!({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
            "required": ["next"]}),
        json!({"type": "array", "minItems": 3, "items": {"type": "string", "pattern": "^[a-z]*$"}}),
    ]);
    let mut cut_without = 0;
    for schema in &schemas {
        for seed in 0..12 {
            let drawn = draw(schema, seed, 256, true);
            assert!(drawn.is_whole, "{schema}, {seed}: {}", drawn.text);
            assert_valid(schema, &drawn.text);
            cut_without += usize::from(!draw(schema, seed, 256, false).is_whole);
        }
    }
    // Without the limit the same draws are cut, so that the test is about it.
    assert!(cut_without >= 10, "{cut_without}");
}

/// Length of the longest run of digits.
fn digits(text: &str) -> usize {
    text.split(|c: char| !c.is_ascii_digit()).map(str::len).max().unwrap()
}

#[test]
fn numbers_have_a_bounded_number_of_digits() {
    for schema in [
        json!({"type": "integer"}),
        json!({"type": "number"}),
        json!({"minimum": 0.5, "maximum": 0.75}),
    ] {
        for seed in 0..40 {
            let drawn = draw(&schema, seed, 300, false);
            // A token has up to two digits.
            let is_number = !drawn.text.contains(['"', '[', '{']);
            assert!(!is_number || digits(&drawn.text) <= 21, "{}", drawn.text);
        }
    }
}

#[test]
fn numbers_of_a_schema_lift_the_bound() {
    let value: Value = serde_json::from_str("123456789012345678901234567890").unwrap();
    for schema in [json!({"const": value}), json!({"enum": [value]})] {
        let drawn = draw(&schema, 1, 100, false);
        assert!(drawn.is_whole && !drawn.text.is_empty(), "{}", drawn.text);
        assert_valid(&schema, &drawn.text);
    }
    let longest =
        |schema: &Value| (0..200).map(|seed| digits(&draw(schema, seed, 300, false).text)).max();
    let lifted = longest(&json!({"type": "integer", "examples": [1e30]}));
    assert!(lifted > Some(22), "{lifted:?}");
}

/// A text of a format may be as long as the schema's own keywords require.
#[test]
fn lengths_and_patterns_lift_the_bounds_of_formats() {
    let long = format!("{}@example.com", "a".repeat(100));
    let follow = |schema: &Value| {
        let guide = Guide::json_schema(schema).unwrap();
        let (tokenizer, cache) = (tokenizer(&[], &[]), ConstraintCache::default());
        let format = OutputFormat::plain();
        let context =
            ConstraintContext::new(Some(&tokenizer), tokenizer.vocab_size(), &format, &cache);
        let mut constraint = guide.constraint(&context).unwrap();
        constraint.start(None).unwrap();
        format!("\"{long}\"").bytes().all(|byte| constraint.accept(u32::from(byte)).is_ok())
    };
    assert!(!follow(&json!({"type": "string", "format": "email"})));
    assert!(follow(&json!({"type": "string", "format": "email", "minLength": 80})));
    assert!(follow(&json!({"type": "string", "format": "email", "maxLength": 200})));
    assert!(follow(
        &json!({"allOf": [{"type": "string", "format": "email"}, {"pattern": "example"}]})
    ));
}
