//! Random damage to inputs: each call returns a value or an error and never panics.

use proptest::prelude::*;

use super::*;

/// A small tokenizer with the same structure as the demo's, so that each of its bytes matters.
pub(super) fn small_tokenizer() -> String {
    let mut vocab = serde_json::Map::new();
    for byte in 33u8..127 {
        vocab.insert(char::from(byte).to_string(), vocab.len().into());
    }
    for token in ["Ġ", "Ċ", "th", "the", "Ġthe", "in", "ing", "<|end|>"] {
        vocab.insert(token.into(), vocab.len().into());
    }
    let end = vocab["<|end|>"].clone();
    serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": end, "content": "<|end|>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\p{N}| ?\\p{L}+|\\s+(?!\\S)|\\s+"},
                "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                "use_regex": false}]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
            "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false, "vocab": vocab,
            "merges": [["t", "h"], ["th", "e"], ["Ġ", "the"], ["i", "n"], ["in", "g"]]},
    })
    .to_string()
}

pub(super) fn use_it(tokenizer: &Tokenizer) {
    for text in ["the thing in <|end|> 12 the\n\n  ", "日本 e\u{301}"] {
        for special_text in [SpecialText::Parse, SpecialText::Plain] {
            let options = EncodeOptions { special_text, ..Default::default() };
            let Ok(tokens) = tokenizer.encode(text, options) else { continue };
            let _ = tokenizer.decode(&tokens, true);
            let mut stream = tokenizer.decode_stream(false);
            for token in tokens {
                let _ = stream.push(token);
            }
            let _ = stream.finish();
        }
    }
}

#[test]
fn the_small_tokenizer_is_sound() {
    let tokenizer = Tokenizer::from_bytes("t", small_tokenizer().as_bytes()).unwrap();
    let tokens = tokenizer.encode("the thing<|end|>", EncodeOptions::default()).unwrap();
    assert_eq!(tokenizer.decode(&tokens, true).unwrap(), "the thing<|end|>");
    use_it(&tokenizer);
}

/// Puts `value` into `json` at the place that `path` selects.
fn put(json: &mut Value, path: &[prop::sample::Index], value: Value) {
    match (path.split_first(), json) {
        (Some((step, rest)), Value::Array(items)) if !items.is_empty() => {
            let at = step.index(items.len());
            put(&mut items[at], rest, value);
        }
        (Some((step, rest)), Value::Object(map)) if !map.is_empty() => {
            let at = step.index(map.len());
            put(map.values_mut().nth(at).unwrap(), rest, value);
        }
        (_, leaf) => *leaf = value,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn damaged_bytes_of_a_tokenizer(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = small_tokenizer().into_bytes();
        for (place, byte) in damage {
            let at = place.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(tokenizer) = Tokenizer::from_bytes("t", &bytes) {
            use_it(&tokenizer);
        }
    }

    #[test]
    fn damaged_values_of_a_tokenizer(
        path in prop::collection::vec(any::<prop::sample::Index>(), 1..7),
        value in prop::sample::select(vec![
            "null", "true", "0", "-1", "1", "101", "4194303", "4294967296", "1e300", "\"\"",
            "\"a\"", "\"(a+)+$\"", "\"(?=\"", "[]", "{}", "[[\"t\",\"h\"]]", "[[\"e\",\"t\"]]",
            "{\"a\":5}", "{\"type\":\"Fuse\"}", "{\"type\":\"Metaspace\"}",
        ]),
    ) {
        let mut json: Value = serde_json::from_str(&small_tokenizer()).unwrap();
        put(&mut json, &path, serde_json::from_str(value).unwrap());
        if let Ok(tokenizer) = Tokenizer::from_bytes("t", json.to_string().as_bytes()) {
            use_it(&tokenizer);
        }
    }

    #[test]
    fn templates_of_random_pieces(pieces in prop::collection::vec(prop::sample::select(vec![
        "{{ ", " }}", "{% ", " %}", "{%- ", " -%}", "{# ", " #}", "for m in messages", "endfor",
        "if ", "else", "elif x", "endif", "set x = ", "messages", ".content", ".role", "[0]",
        "[::-1]", "[-9:9:0]", "|tojson", "|join(", "|length", "| map(attribute='role')", "(", ")",
        "'", "\"", "a", " ~ ", " + ", " - ", "* 9", "// 0", "% 0", "** 99", "1e308", "none", "not ",
        " is defined", "namespace(a=1)", "ns.a", "macro f(a)", "endmacro", "f(1)", "loop.index",
        "break", "continue", "call f()", "endcall", "filter upper", "endfilter", "strftime_now('%",
        "raw", "endraw", "generation", "endgeneration", "\n", "é", "{", "}", "%", "range(3)",
        ".split('')", ".strip('a')", ".replace('', 'b')", "|indent(-1)", "|batch(0)", "|slice(0)",
        "|round(-400)", "|tojson(indent=99)", "dict(a=1)", "include 'a'", "autoescape true",
    ]), 0..24)) {
        let source: String = pieces.concat();
        let Ok(template) = ChatTemplate::new(&source) else { return Ok(()) };
        let messages = [Message::user("a"), Message::assistant("b")];
        let now = Some(TemplateTime::from_unix_seconds(1));
        let _ = template.render(&ChatInput { messages: &messages, now, ..Default::default() });
    }

    #[test]
    fn dates_never_fail(seconds in any::<i64>(), format in "(%[-a-zA-Z%]|x){0,4}") {
        let _ = TemplateTime::from_unix_seconds(seconds).format(&format);
    }
}
