//! Schemas, regular expressions and grammars of arbitrary text. They compile or are rejected by name within a
//! bounded time.
#![no_main]

use std::time::{Duration, Instant};

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use nestling_guide::Guide;

#[derive(Arbitrary, Debug)]
enum Kind {
    Schema,
    Regex,
    Grammar,
    Gbnf,
    Choices,
}

fuzz_target!(|input: (Kind, String)| {
    let (kind, text) = input;
    let start = Instant::now();
    let guide = match kind {
        Kind::Schema => Guide::json_schema_text(&text),
        Kind::Regex => Guide::regex(&text),
        Kind::Grammar => Guide::lark(&text),
        Kind::Gbnf => Guide::gbnf(&text),
        Kind::Choices => Guide::choices(&text.split('|').map(String::from).collect::<Vec<_>>()),
    };
    if let Err(error) = guide {
        let error = error.to_string();
        assert!(!error.contains("panicked") && error.len() < 1 << 20, "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
});
