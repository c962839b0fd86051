//! Limits handed to the grammar engine (`parser_limits` in `src/limits.rs`) that end a generation.

use nestling_guide::Guide;
use nestling_runtime::{ConstraintCache, ConstraintContext, ConstraintSource, TokenMask};
use nestling_text::OutputFormat;
use serde_json::json;

use super::walker::*;

/// Compiles a grammar and follows a text, as far as it is allowed. Returns the first error.
fn follow(guide: &Guide, text: &str) -> Result<(), String> {
    let (tokenizer, cache) = (tokenizer(&[], &[]), ConstraintCache::default());
    let format = OutputFormat::plain();
    let context = ConstraintContext::new(Some(&tokenizer), tokenizer.vocab_size(), &format, &cache);
    let error = |error: &dyn std::fmt::Display| error.to_string();
    let mut constraint = guide.constraint(&context).map_err(|source| error(&source))?;
    constraint.start(None).map_err(|source| error(&source))?;
    let mut mask = TokenMask::none(tokenizer.vocab_size());
    for byte in text.bytes() {
        mask.forbid_all();
        constraint.mask(&mut mask).map_err(|source| error(&source))?;
        if !mask.allows(u32::from(byte)) {
            return Err(format!("{:?} is not allowed", char::from(byte)));
        }
        constraint.accept(u32::from(byte)).map_err(|source| error(&source))?;
    }
    Ok(())
}

/// The first is of a tool of a coding agent.
#[test]
fn characters_of_long_texts_are_counted() {
    for length in [524_288, 1 << 20] {
        let schema = json!({ "type": "object", "properties": { "script": { "type": "string", "maxLength": length } } });
        follow(&Guide::json_schema(&schema).unwrap(), "{\"script\": \"x = 1\"}").unwrap();
    }
    let guide = Guide::json_schema(&json!({ "type": "string", "maxLength": 4096 })).unwrap();
    let text = |length: usize| format!("\"{}\"", "a".repeat(length));
    follow(&guide, &text(4096)).unwrap();
    assert_eq!(follow(&guide, &text(4097)).unwrap_err(), "'a' is not allowed");
    let error =
        Guide::json_schema(&json!({ "properties": { "a": { "maxLength": 1e9 } } })).unwrap_err();
    assert!(error.to_string().contains("/properties/a/maxLength"), "{error}");
}

/// Rules without many characters have many items: 40 rules of 10,000 repetitions each.
#[test]
fn items_of_a_step_are_limited() {
    let rules: String = (0..40).map(|n| format!("r{n}: (A B){{9990,10000}}\n")).collect();
    let all: Vec<String> = (0..40).map(|n| format!("r{n}")).collect();
    let lark = format!("start: {}\n{rules}A: \"a\"\nB: \"b\"\n", all.join(" "));
    let error = follow(&Guide::lark(&lark).unwrap(), "a").unwrap_err();
    assert!(error.contains("Too many items (limit 50000"), "{error}");
}
