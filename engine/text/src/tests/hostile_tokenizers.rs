//! Malicious tokenizers: each is rejected before the library sees it, or works within limits.

use proptest::prelude::*;
use serde_json::json;

use super::hostile::{small_tokenizer, use_it};
use super::*;
use crate::tokenizer::count_values;

/// Replaces one part of the small tokenizer.
fn with(part: &str, value: Value) -> String {
    let mut json: Value = serde_json::from_str(&small_tokenizer()).unwrap();
    json[part] = value;
    json.to_string()
}

#[track_caller]
fn is_refused(part: &str, value: Value, expected: &str) {
    let text = with(part, value);
    match Tokenizer::from_bytes("t", text.as_bytes()) {
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains(expected), "{expected}: {error:.400}");
            assert!(error.len() < 1000, "{} bytes of an error", error.len());
        }
        Ok(_) => panic!("{expected}: {text:.400}"),
    }
}

fn regex(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

fn replacement(pattern: &Value, content: &str) -> Value {
    json!({"type": "Replace", "pattern": pattern, "content": content})
}

#[test]
fn parts_that_panic_are_refused() {
    let precompiled = json!({"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"});
    is_refused("normalizer", precompiled.clone(), "known to be safe");
    let hidden = json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, precompiled]});
    is_refused("normalizer", hidden, "known to be safe");
    let fixed = json!({"type": "FixedLength", "length": 0});
    is_refused("pre_tokenizer", fixed, "known to be safe");
    is_refused("normalizer", json!({"type": "Prepend", "prepend": ""}), "a text to begin with");
    let piece = |id: &str| json!([{"Sequence": {"id": id, "type_id": 0}}]);
    let template = |single: Value| {
        json!({"type": "TemplateProcessing", "single": single, "pair": piece("B"),
            "special_tokens": {}})
    };
    is_refused("post_processor", template(piece("B")), "expected sequence A, found \"B\"");
    let sound = with("post_processor", template(piece("A")));
    use_it(&Tokenizer::from_bytes("t", sound.as_bytes()).unwrap());
}

#[test]
fn parts_that_grow_without_end_are_refused() {
    let ids: Vec<u32> = (0..1000).collect();
    let piece = json!({"SpecialToken": {"id": "x", "type_id": 0}});
    let token = json!({"x": {"id": "x", "ids": ids, "tokens": vec!["x"; 1000]}});
    let mut single = vec![piece; 1000];
    single.push(json!({"Sequence": {"id": "A", "type_id": 0}}));
    let template = json!({"type": "TemplateProcessing", "single": single, "pair": [],
        "special_tokens": token});
    is_refused("post_processor", template, "at most 64 pieces and ids");

    let empty = replacement(&json!({"String": ""}), "xx");
    let decoders = json!({"type": "Sequence", "decoders": vec![empty; 12]});
    is_refused("decoder", decoders, "expected a pattern");
    let twice = replacement(&json!({"String": "x"}), "xx");
    let grows = json!({"type": "Sequence", "normalizers": vec![twice; 7]});
    is_refused("normalizer", grows, "64 times longer");
    let anywhere = replacement(&json!({"Regex": "a*"}), &"x".repeat(100));
    is_refused("normalizer", anywhere, "64 times longer");
    let many = json!({"type": "Sequence", "normalizers": vec![json!({"type": "NFC"}); 33]});
    is_refused("normalizer", many, "at most 32 parts");
    let mut deep = json!({"type": "NFC"});
    for _ in 0..4 {
        deep = json!({"type": "Sequence", "normalizers": [deep]});
    }
    is_refused("normalizer", deep, "sequences within each other");
}

#[test]
fn regular_expressions_are_bounded() {
    is_refused("pre_tokenizer", regex(&"(?=a)".repeat(400)), "groups that look around");
    is_refused("pre_tokenizer", regex(&"(?=a)".repeat(17)), "groups that look around");
    is_refused("pre_tokenizer", regex(&"a|".repeat(2_500_000)), "2048 bytes");
    is_refused("pre_tokenizer", regex("(\\p{L}{1000}){1000}"), "moderate size");
    is_refused("pre_tokenizer", regex("((a{100}){100}){100}"), "moderate size");
    is_refused("pre_tokenizer", regex("(a"), "moderate size");
    is_refused("version", json!(",".repeat(1 << 20)), "expected a tokenizer");
    // A pattern with long backtracking stops at the library's own limit.
    let slow = with("pre_tokenizer", regex("(?=(a+)+$)\\w"));
    let slow = Tokenizer::from_bytes("t", slow.as_bytes()).unwrap();
    let _ = slow.encode(&("a".repeat(40) + "!"), EncodeOptions::default());
}

/// The longest and most demanding regular expressions of published tokenizers.
#[test]
fn regular_expressions_of_published_tokenizers_are_taken() {
    let o200k = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*\
        [\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?\
        [\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*\
        (?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\
        \\s+(?!\\S)|\\s+";
    let kimi = "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*\
        [\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}|\
        ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    let deepseek = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?\
        [\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    for pattern in [o200k, deepseek, &kimi.replace("|?[", "| ?[")] {
        let text = with("pre_tokenizer", regex(pattern));
        use_it(&Tokenizer::from_bytes("t", text.as_bytes()).unwrap());
    }
}

#[test]
fn a_file_of_small_values_is_refused_before_it_is_read() {
    let text = format!("{{\"model\": [{}1]}}", "1,".repeat(7 << 20));
    let error = Tokenizer::from_bytes("t", text.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("at most 6291456 values"), "{error}");
    // Separators within strings are not counted.
    assert_eq!(count_values(br#"{"a,b": ["\\\",[", 2]}"#), 5);
}

#[test]
fn added_tokens_are_bounded() {
    let token = |content: &str| {
        json!({"id": 5, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true})
    };
    is_refused("added_tokens", json!([token(&"x".repeat(2 << 20))]), "at most 65536 of 1 MiB");
}

/// Valid and invalid parts of all kinds that the library knows.
fn parts(list: &str) -> impl Strategy<Value = Value> + use<> {
    let one = prop::sample::select(vec![
        json!({"type": "NFC"}),
        json!({"type": "NFKD"}),
        json!({"type": "Nmt"}),
        json!({"type": "Lowercase"}),
        json!({"type": "Strip", "strip_left": true, "strip_right": true}),
        json!({"type": "Strip", "content": "e", "start": 18446744073709551615u64, "stop": 3}),
        json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}),
        json!({"type": "StripAccents"}),
        json!({"type": "Prepend", "prepend": ""}),
        json!({"type": "Prepend", "prepend": "▁"}),
        json!({"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"}),
        json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true}),
        replacement(&json!({"String": ""}), "x"),
        replacement(&json!({"String": " "}), "▁"),
        replacement(&json!({"Regex": "\\s*"}), ""),
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        json!({"type": "ByteLevel"}),
        json!({"type": "Digits", "individual_digits": true}),
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
        json!({"type": "Metaspace", "replacement": "e", "prepend_scheme": "never", "split": true}),
        json!({"type": "Punctuation", "behavior": "Removed"}),
        json!({"type": "Punctuation", "behavior": "Contiguous"}),
        json!({"type": "CharDelimiterSplit", "delimiter": "e"}),
        json!({"type": "FixedLength", "length": 0}),
        json!({"type": "UnicodeScripts"}),
        json!({"type": "Whitespace"}),
        json!({"type": "WhitespaceSplit"}),
        regex("x*"),
        json!({"type": "Split", "pattern": {"Regex": "\\S*"}, "behavior": "MergedWithNext", "invert": true}),
        json!({"type": "Split", "pattern": {"String": "e"}, "behavior": "MergedWithPrevious", "invert": true}),
        json!({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B", "type_id": 0}}],
            "pair": [], "special_tokens": {}}),
        json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "y", "type_id": 0}}],
            "pair": [], "special_tokens": {}}),
        json!({"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}),
        json!({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [], "special_tokens": {}}),
        json!({"type": "RobertaProcessing", "sep": ["a", 1], "cls": ["b", 2], "trim_offsets": true,
            "add_prefix_space": true}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
        json!({"type": "BPEDecoder", "suffix": ""}),
        json!({"type": "WordPiece", "prefix": "", "cleanup": true}),
        json!({"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": true}),
    ]);
    let list = list.to_owned();
    let sequence = prop::collection::vec(one.clone(), 0..4)
        .prop_map(move |parts| json!({"type": "Sequence", list.as_str(): parts}));
    prop_oneof![Just(Value::Null), one, sequence]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn parts_in_any_combination_compute_or_are_refused(
        normalizer in parts("normalizers"),
        pre_tokenizer in parts("pretokenizers"),
        post_processor in parts("processors"),
        decoder in parts("decoders"),
    ) {
        let mut json: Value = serde_json::from_str(&small_tokenizer()).unwrap();
        json["normalizer"] = normalizer;
        json["pre_tokenizer"] = pre_tokenizer;
        json["post_processor"] = post_processor;
        json["decoder"] = decoder;
        let tokenizer = match Tokenizer::from_bytes("t", json.to_string().as_bytes()) {
            Ok(tokenizer) => tokenizer,
            // The list of allowed parts must reject the input, not the panic handler below it.
            Err(error) => {
                let is_caught = matches!(error, TextError::TokenizerPanicked { .. });
                prop_assert!(!is_caught, "{error}: {json}");
                return Ok(());
            }
        };
        for text in ["the thing in <|end|> 12 the\n\n  ", "日本 e\u{301}", ""] {
            for special_text in [SpecialText::Parse, SpecialText::Plain] {
                let encoded = tokenizer.encode(text, EncodeOptions { special_text, ..Default::default() });
                let is_caught = matches!(encoded, Err(TextError::TokenizerPanicked { .. }));
                prop_assert!(!is_caught, "{json}");
                let Ok(tokens) = encoded else { continue };
                let decoded = tokenizer.decode(&tokens, true);
                let is_caught = matches!(decoded, Err(TextError::TokenizerPanicked { .. }));
                prop_assert!(!is_caught, "{json}");
            }
        }
    }
}
