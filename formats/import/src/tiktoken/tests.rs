//! A vocabulary of ranks against transformers' converter, and damaged ones.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::*;

fn data(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiktoken");
    fs::read(folder.join(name)).unwrap()
}

/// What a folder with these files says.
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

#[test]
fn damaged_ranks_are_named_errors() {
    let config = data("tokenizer_config.json");
    let zeros = "A".repeat(340);
    let (long, most) = (format!("{zeros}AAA= 0\n"), format!("{zeros}AA== 0\n"));
    assert!(of_files(most.as_bytes(), Some(&config)).is_ok());
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
