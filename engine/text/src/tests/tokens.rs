use proptest::prelude::*;

use super::*;

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn ids_and_texts_are_those_of_the_python_library() {
    let tokenizer = demo_tokenizer();
    let goldens = json("tokenizer_goldens.json");
    let cases = goldens["cases"].as_array().unwrap();
    assert!(cases.len() > 20);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let parsed = tokenizer.encode(text, EncodeOptions::default()).unwrap();
        assert_eq!(parsed, ids(&case["ids"]), "{text:?}");
        let plain = EncodeOptions { special_text: SpecialText::Plain, ..Default::default() };
        assert_eq!(tokenizer.encode(text, plain).unwrap(), ids(&case["plain_ids"]), "{text:?}");
        assert_eq!(tokenizer.decode(&parsed, false).unwrap(), case["decoded"], "{text:?}");
        assert_eq!(tokenizer.decode(&parsed, true).unwrap(), case["decoded_special"], "{text:?}");
    }
}

#[test]
fn a_stream_gives_what_decoding_at_once_gives() {
    let tokenizer = demo_tokenizer();
    let text = "naïve 👩‍👩‍👧‍👦 漢字 e\u{301}\r\n<|im_end|>done";
    let tokens = tokenizer.encode(text, EncodeOptions::default()).unwrap();
    assert!(tokens.len() > text.chars().count(), "emoji must be split over tokens");
    for keep_special in [false, true] {
        let mut stream = tokenizer.decode_stream(keep_special);
        let mut out = String::new();
        for token in &tokens {
            let piece = stream.push(*token).unwrap();
            assert!(!piece.contains('\u{fffd}'), "a cut character in {piece:?}");
            out += &piece;
        }
        out += &stream.finish().unwrap();
        assert_eq!(out, tokenizer.decode(&tokens, keep_special).unwrap());
        assert_eq!(out.contains("<|im_end|>"), keep_special);
    }
}

#[test]
fn a_character_that_never_ends_comes_out_when_the_stream_does() {
    let tokenizer = demo_tokenizer();
    let emoji = tokenizer.encode("😀", EncodeOptions::default()).unwrap();
    let mut stream = tokenizer.decode_stream(false);
    for token in &emoji[..emoji.len() - 1] {
        assert_eq!(stream.push(*token).unwrap(), "");
    }
    assert_eq!(stream.finish().unwrap(), "\u{fffd}");
    // A word after an incomplete character: the character is replaced, and the word is not delayed.
    let word = tokenizer.encode("hen", EncodeOptions::default()).unwrap();
    stream.push(emoji[0]).unwrap();
    let out: String = word.iter().map(|token| stream.push(*token).unwrap()).collect();
    assert_eq!(out, "\u{fffd}hen");
}

#[test]
fn the_last_id_counts_and_unknown_ids_are_errors() {
    let tokenizer = demo_tokenizer();
    assert_eq!(tokenizer.vocab_size(), 4096);
    tokenizer.decode(&[4095], false).unwrap();
    for id in [4096, u32::MAX] {
        let error = tokenizer.decode(&[id], false).unwrap_err();
        assert!(matches!(error, TextError::UnknownToken { vocab_size: 4096, .. }), "{error}");
        assert!(tokenizer.decode_stream(false).push(id).is_err());
        assert_eq!(tokenizer.token_bytes(id), None);
    }
    assert_eq!(tokenizer.token_to_id("<|im_end|>"), Some(2));
    assert!(tokenizer.is_special(2) && !tokenizer.is_special(3));
}

/// A tokenizer of another kind: spaces as U+2581, bytes as `<0xF0>`.
fn metaspace_tokenizer() -> Tokenizer {
    let mut vocab = serde_json::Map::new();
    for (id, token) in ["<unk>", "<s>", "▁a", "▁", "a", "b", "▁b"].iter().enumerate() {
        vocab.insert((*token).into(), id.into());
    }
    for byte in 0..256 {
        vocab.insert(format!("<0x{byte:02X}>"), (byte + 7).into());
    }
    let json = serde_json::json!({
        "version": "1.0",
        "added_tokens": [{"id": 1, "content": "<s>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>",
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
            "byte_fallback": true, "vocab": vocab, "merges": [["▁", "a"], ["▁", "b"]]},
    });
    Tokenizer::from_bytes("metaspace", json.to_string().as_bytes()).unwrap()
}

#[test]
fn a_vocabulary_with_begin_token_and_byte_fallback_streams_too() {
    let tokenizer = metaspace_tokenizer();
    let text = "a b 😀 b a".to_owned() + &" ab".repeat(60);
    let tokens = tokenizer.encode(&text, EncodeOptions::default()).unwrap();
    assert_eq!(tokens[0], 1);
    let bare = EncodeOptions { add_special_tokens: false, ..Default::default() };
    assert_eq!(tokenizer.encode(&text, bare).unwrap(), tokens[1..]);
    assert_eq!(tokenizer.token_bytes(2), None);
    let mut stream = tokenizer.decode_stream(false);
    let mut out: String = tokens.iter().map(|token| stream.push(*token).unwrap()).collect();
    out += &stream.finish().unwrap();
    assert_eq!(out, text);
    assert_eq!(tokenizer.decode(&tokens, false).unwrap(), text);
}

#[test]
fn gemmas_tokens_have_bytes_of_their_own() {
    let bytes = std::fs::read(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../runtime/tests/data/families/gemma4/tokenizer.json"
    ));
    let tokenizer = Tokenizer::from_bytes("gemma4", &bytes.unwrap()).unwrap();
    let text = " The ship  left — 😀漢\nend ";
    let tokens = tokenizer.encode(text, EncodeOptions::default()).unwrap();
    assert_eq!(tokens[0], tokenizer.token_to_id("<bos>").unwrap());
    let space = tokenizer.token_to_id("▁").unwrap();
    assert_eq!(tokenizer.token_bytes(space), Some(&b" "[..]));
    let byte = tokenizer.token_to_id("<0xF0>").unwrap();
    assert!(tokens.contains(&byte));
    assert_eq!(tokenizer.token_bytes(byte), Some(&[0xf0][..]));
    assert_eq!(tokenizer.decode(&tokens, false).unwrap(), text);
    assert_eq!(tokenizer.inner_decode(&tokens), format!("<bos>{text}"));
    let mut stream = tokenizer.decode_stream(false);
    let mut out = String::new();
    for token in tokens {
        let piece = stream.push(token).unwrap();
        assert!(!piece.contains('\u{fffd}'), "a cut character in {piece:?}");
        out += &piece;
    }
    assert_eq!(out + &stream.finish().unwrap(), text);
}

#[test]
fn damaged_tokenizers_are_named_errors() {
    let good = json("demo_tokenizer.json");
    type Damage<'a> = &'a dyn Fn(&mut Value);
    let broken = |change: Damage| {
        let mut json = good.clone();
        change(&mut json);
        Tokenizer::from_bytes("t.json", json.to_string().as_bytes()).unwrap_err().to_string()
    };
    let cases: [(&str, Damage); 9] = [
        ("model", &|json| drop(json.as_object_mut().unwrap().remove("model"))),
        ("BPE", &|json| json["model"]["type"] = "Unigram".into()),
        ("dropout", &|json| json["model"]["dropout"] = 0.1.into()),
        ("every id once", &|json| json["model"]["vocab"]["!"] = 4.into()),
        ("4194304", &|json| json["model"]["vocab"]["!"] = 4_000_000_000u64.into()),
        ("-1", &|json| json["model"]["vocab"]["!"] = (-1).into()),
        ("empty", &|json| json["added_tokens"][0]["content"] = "".into()),
        ("added_tokens", &|json| json["added_tokens"][0]["id"] = u64::MAX.into()),
        ("t.json", &|json| json["model"]["merges"][0] = serde_json::json!(["zzzz", "qqqq"])),
    ];
    for (expected, change) in cases {
        let error = broken(change);
        assert!(error.contains(expected), "{expected}: {error}");
    }
    for bytes in [&b""[..], b"{", b"[]", b"null", b"\xff"] {
        assert!(Tokenizer::from_bytes("t.json", bytes).is_err());
    }
}

proptest! {
    #[test]
    fn any_text_survives_the_round_trip(text in "\\PC{0,40}") {
        let tokenizer = demo_tokenizer();
        let options = EncodeOptions { special_text: SpecialText::Plain, ..Default::default() };
        let tokens = tokenizer.encode(&text, options).unwrap();
        prop_assert!(tokens.iter().all(|token| !tokenizer.is_special(*token)));
        prop_assert_eq!(tokenizer.decode(&tokens, false).unwrap(), text);
    }

    #[test]
    fn any_tokens_stream_as_they_decode(tokens in prop::collection::vec(0u32..4096, 0..60)) {
        let tokenizer = demo_tokenizer();
        let mut stream = tokenizer.decode_stream(true);
        let mut out = String::new();
        for token in &tokens {
            out += &stream.push(*token).unwrap();
        }
        out += &stream.finish().unwrap();
        prop_assert_eq!(out, tokenizer.decode(&tokens, true).unwrap());
        let whole = tokenizer.inner_decode(&tokens);
        prop_assert_eq!(tokenizer.decode(&tokens, true).unwrap(), whole);
    }
}

/// A byte-fallback tokenizer with one long word, after changes to its JSON.
fn bounded(change: impl FnOnce(&mut Value)) -> Tokenizer {
    let bytes = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>"));
    let words = ["a", "b", "ab", "abababab"].map(String::from).into_iter().chain(bytes);
    let vocab: serde_json::Map<_, _> = words.zip(0..).map(|(word, id)| (word, id.into())).collect();
    let mut json = serde_json::json!({
        "version": "1.0",
        "added_tokens": [added("<|end|>", false)],
        "normalizer": null, "pre_tokenizer": null,
        "model": { "type": "BPE", "vocab": vocab, "merges": ["a b"], "byte_fallback": true },
    });
    change(&mut json);
    Tokenizer::from_bytes("tokenizer.json", json.to_string().as_bytes()).unwrap()
}

fn added(content: &str, lstrip: bool) -> Value {
    serde_json::json!({
        "id": 300, "content": content, "special": true, "normalized": false, "single_word": false,
        "lstrip": lstrip, "rstrip": false,
    })
}

#[test]
fn a_text_has_at_least_as_many_tokens_as_its_length_says() {
    let plain = bounded(|_| {});
    assert_eq!(plain.least_tokens(&"x".repeat(80)), 10);
    let added_is_longest =
        bounded(|json| json["added_tokens"] = serde_json::json!([added("<|0123456|>", false)]));
    assert_eq!(added_is_longest.least_tokens(&"x".repeat(110)), 10);
    let shrinking = bounded(|json| json["normalizer"] = serde_json::json!({"type": "NFC"}));
    // Seven bytes that NFC composes to two, a hundred times.
    let text = "\u{1fbe}\u{308}\u{301}".repeat(100);
    let tokens = shrinking.encode(&text, EncodeOptions::default()).unwrap().len();
    assert!(plain.least_tokens(&text) > 80);
    assert!((1..=tokens).contains(&shrinking.least_tokens(&text)), "{tokens}");
    assert_eq!(shrinking.least_tokens(&"x".repeat(80)), 10, "ASCII does not shrink");
    for tokenizer in [demo_tokenizer(), plain, shrinking, added_is_longest] {
        for case in json("tokenizer_goldens.json")["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap().repeat(9);
            let tokens = tokenizer.encode(&text, EncodeOptions::default()).unwrap().len();
            let least = tokenizer.least_tokens(&text);
            assert!(least <= tokens, "{text:?}: {least} against {tokens}");
        }
    }
}

#[test]
fn where_text_may_be_left_out_its_length_says_nothing() {
    type Change = fn(&mut Value);
    let changes: [Change; 7] = [
        |json| json["added_tokens"] = serde_json::json!([added("<|end|>", true)]),
        |json| json["normalizer"] = serde_json::json!({"type": "Lowercase"}),
        |json| {
            json["normalizer"] = serde_json::json!({
                "type": "Replace", "pattern": {"String": "xx"}, "content": "x"
            })
        },
        |json| json["pre_tokenizer"] = serde_json::json!({"type": "WhitespaceSplit"}),
        |json| {
            json["pre_tokenizer"] = serde_json::json!({
                "type": "Split", "pattern": {"String": "x"}, "behavior": "Removed", "invert": false
            })
        },
        |json| json["model"]["byte_fallback"] = false.into(),
        |json| drop(json["model"]["vocab"].as_object_mut().unwrap().remove("<0x78>")),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        assert_eq!(bounded(change).least_tokens(&"x".repeat(800)), 0, "change {number}");
    }
}

/// Checks all Unicode characters and compositions: none shrinks by more than the bound assumes.
#[test]
fn nfc_shrinks_no_character_more_than_the_bound_takes_for_granted() {
    use tokenizers::normalizers::unicode::{NFC, NFD};
    use tokenizers::{NormalizedString, Normalizer};
    let weight = |c: char| if c.is_ascii() { 4 } else { c.len_utf8() };
    let through = |normalizer: &dyn Fn(&mut NormalizedString), c: char| {
        let mut text = NormalizedString::from(c.to_string());
        normalizer(&mut text);
        text.get().to_owned()
    };
    let nfd = |c: char| through(&|text| NFD.normalize(text).unwrap(), c);
    let nfc = |c: char| through(&|text| NFC.normalize(text).unwrap(), c);
    // The longest spelling of each character that does not decompose.
    let mut heaviest = std::collections::HashMap::new();
    // Characters beyond the last plane of Han characters do not decompose.
    let all = || '\0'..='\u{3ffff}';
    for c in all() {
        let whole = nfd(c);
        let mut parts = whole.chars();
        if let (Some(part), None) = (parts.next(), parts.next()) {
            let heaviest = heaviest.entry(part).or_insert(0);
            *heaviest = weight(c).max(*heaviest);
        }
    }
    for c in all() {
        let parts: usize = nfd(c).chars().map(|part| heaviest[&part]).sum();
        assert!(weight(c) <= parts, "{c:?} is heavier than its parts");
        let composed = nfc(c);
        assert!(composed.chars().count() > 1 || composed.len() * 4 >= parts, "{c:?}: {parts}");
    }
}

/// Ranks with Kimi-K2's pattern, and merges that transformers derives from the ranks, give tiktoken's ids.
#[test]
fn ranks_with_kimis_pattern_give_tiktokens_ids() {
    let folder = "../../formats/import/tests/data/tiktoken";
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder);
    let read = |name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap()
    };
    let (golden, config) = (read("golden.json"), read("tokenizer_config.json"));
    let added = (600..856).map(|id: u64| {
        let content = config["added_tokens_decoder"][id.to_string()]["content"].as_str();
        let reserved = format!("<|reserved_token_{id}|>");
        serde_json::json!({"id": id, "content": content.unwrap_or(&reserved), "special": true,
            "normalized": false, "single_word": false, "lstrip": false, "rstrip": false})
    });
    let bytes = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false,
        "trim_offsets": false, "use_regex": false});
    let split = serde_json::json!({"type": "Split", "pattern": {"Regex": golden["pattern"]},
        "behavior": "Isolated", "invert": false});
    let file = serde_json::json!({
        "version": "1.0",
        "added_tokens": added.collect::<Vec<_>>(),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes]},
        "decoder": bytes,
        "model": {"type": "BPE", "ignore_merges": true, "vocab": golden["vocab"],
            "merges": golden["merges"]},
    });
    let tokenizer = Tokenizer::from_bytes("t", file.to_string().as_bytes()).unwrap();
    for case in golden["texts"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode(text, EncodeOptions::default()).unwrap(), ids, "{text:?}");
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), text);
    }
}
