//! A tiktoken vocabulary compared with transformers' converter, and damaged vocabularies.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::*;

fn data(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiktoken");
    fs::read(folder.join(name)).unwrap()
}

fn of_files(ranks: &[u8], config: Option<&[u8]>) -> Result<Value, String> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tiktoken.model"), ranks).unwrap();
    if let Some(config) = config {
        fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
    }
    let json = tokenizer_json(folder.path()).map_err(|error| error.to_string())?.unwrap();
    Ok(serde_json::from_slice(&json).unwrap())
}

#[test]
fn vocabulary_and_merges_are_those_of_transformers_converter() {
    let golden: Value = serde_json::from_slice(&data("golden.json")).unwrap();
    let config = data("tokenizer_config.json");
    let mut json = of_files(&data("tiktoken.model"), Some(&config)).unwrap();
    let added = json["added_tokens"].as_array().unwrap();
    assert_eq!(added.len(), 256);
    let texts = |id: usize| (&added[id - 600]["content"], &added[id - 600]["special"]);
    assert_eq!(texts(600), (&"[BOS]".into(), &true.into()));
    assert_eq!(texts(607), (&"<|tool_call_begin|>".into(), &false.into()));
    assert_eq!(texts(855), (&"<|reserved_token_855|>".into(), &true.into()));
    let split = &json["pre_tokenizer"]["pretokenizers"][0];
    assert_eq!(split["pattern"]["Regex"], golden["pattern"]);
    let model = json["model"].as_object_mut().unwrap();
    assert_eq!(model["merges"], golden["merges"]);
    assert_eq!(model["ignore_merges"], true);
    let vocab = model["vocab"].as_object_mut().unwrap();
    assert_eq!(vocab.len(), 600 + 256);
    vocab.retain(|_, id| id.as_u64().unwrap() < 600);
    assert_eq!(Value::Object(vocab.clone()), golden["vocab"]);
}

#[test]
fn a_folder_without_ranks_has_no_such_tokenizer() {
    assert!(tokenizer_json(tempfile::tempdir().unwrap().path()).unwrap().is_none());
}

#[test]
fn code_that_is_not_known_is_refused_by_name() {
    for config in [None, Some(&b"{}"[..]), Some(b"{\"tokenizer_class\": \"QWenTokenizer\"}")] {
        let error = of_files(&data("tiktoken.model"), config).unwrap_err();
        assert!(error.contains("tokenizer_class") && error.contains("tokenizer.json"), "{error}");
    }
    let config =
        b"{\"tokenizer_class\": \"TikTokenTokenizer\", \"added_tokens_decoder\": {\"x\": {}}}";
    let error = of_files(b"", Some(config)).unwrap_err();
    assert!(error.contains("added_tokens_decoder"), "{error}");
}

/// Returns ranks of all single bytes except `left_out`, and of further tokens.
fn ranks_of(left_out: &[u8], further: &[&[u8]]) -> Vec<u8> {
    let singles = (0..=255u8).filter(|byte| !left_out.contains(byte)).map(|byte| vec![byte]);
    let tokens = singles.chain(further.iter().map(|token| token.to_vec()));
    let lines = tokens.enumerate().map(|(rank, token)| {
        let mut text = [0; 400];
        let length = STANDARD.encode_slice(token, &mut text).unwrap();
        format!("{} {rank}\n", String::from_utf8_lossy(&text[..length]))
    });
    lines.collect::<String>().into_bytes()
}

fn config_of(tokens: &[(&str, &str)]) -> Vec<u8> {
    let token = |(id, text): &(&str, &str)| ((*id).to_owned(), json!({ "content": text }));
    let tokens: serde_json::Map<String, Value> = tokens.iter().map(token).collect();
    json!({ "tokenizer_class": CLASS, "added_tokens_decoder": tokens }).to_string().into_bytes()
}

#[test]
fn every_byte_has_a_token() {
    let config = config_of(&[]);
    assert!(of_files(&ranks_of(&[], &[b"ab"]), Some(&config)).is_ok());
    for (left_out, name) in [(&[0xff][..], "0xff"), (b"a", "0x61"), (&[7, 0], "0x00")] {
        let error = of_files(&ranks_of(left_out, &[b"ab"]), Some(&config)).unwrap_err();
        assert!(error.contains(name) && error.contains("tiktoken.model"), "{error}");
    }
    assert!(of_files(b"", Some(&config)).unwrap_err().contains("0x00"));
}

/// The vocabulary has 257 ranks, so the special ids are 257 to 512.
#[test]
fn special_tokens_have_places_and_texts_of_their_own() {
    let of =
        |tokens: &[(&str, &str)]| of_files(&ranks_of(&[], &[b" a\xc3"]), Some(&config_of(tokens)));
    // The last text contains a character that does not represent a byte.
    assert!(of(&[("257", "[A]"), ("512", "[B]"), ("300", "\u{120}a\u{3b1}")]).is_ok());
    for (tokens, id, what) in [
        (&[("256", "[A]")][..], "256", "257 to 512"),
        (&[("513", "[A]")], "513", "257 to 512"),
        (&[("18446744073709551615", "[A]")], "18446744073709551615", "257 to 512"),
        (&[("257", "[A]"), ("0257", "[B]")], "257", "every id once"),
        (&[("257", "[A]"), ("258", "[A]")], "258", "[A]"),
        (&[("257", "<|reserved_token_300|>")], "300", "<|reserved_token_300|>"),
        (&[("257", "a")], "257", "rank 97"),
        // The text equals the spelling of the token with rank 256.
        (&[("257", "\u{120}a\u{c3}")], "257", "rank 256"),
    ] {
        let error = of(tokens).unwrap_err();
        assert!(error.contains(id) && error.contains(what), "{tokens:?}: {error}");
        assert!(error.contains("tokenizer_config.json"), "{tokens:?}: {error}");
    }
}

#[test]
fn damaged_ranks_are_named_errors() {
    let config = data("tokenizer_config.json");
    let config_of_none = config_of(&[]);
    let zeros = "A".repeat(340);
    let long = format!("{zeros}AAA= 0\n");
    assert!(of_files(&ranks_of(&[], &[&[0; 256]]), Some(&config_of_none)).is_ok());
    for (ranks, what) in [
        ("YQ== 0\nYg== 2\n", "at byte 7"),
        ("YQ==\n", "a rank"),
        ("YQ== x\n", "a rank"),
        ("YQ== -1\n", "a rank"),
        ("Y? 0\n", "a token"),
        (" 0\n", "a rank"),
        ("YQ== 0\nYQ== 1\n", "every token once"),
        (&long, "a token"),
    ] {
        let error = of_files(ranks.as_bytes(), Some(&config)).unwrap_err();
        assert!(error.contains(what) && error.contains("tiktoken.model"), "{ranks:?}: {error}");
    }
}
