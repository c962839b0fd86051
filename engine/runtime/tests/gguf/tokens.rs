//! Tokenization of texts in many scripts, compared with llama.cpp.

use std::path::Path;

use nestling_import::gguf::{GgufHeader, tokenizer_json};
use nestling_text::{EncodeOptions, SpecialText, Tokenizer};
use serde_json::Value;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

fn tokenizer(path: &Path) -> Tokenizer {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).unwrap();
    let header = GgufHeader::parse(&name, &bytes, bytes.len() as u64).unwrap();
    let json = tokenizer_json(&header.metadata).unwrap();
    Tokenizer::from_bytes(&name, &json).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn tokens_are_those_of_llama_cpp() {
    for name in super::MODELS {
        let tokenizer = tokenizer(&super::data(&format!("{name}.gguf")));
        let golden = super::json(&format!("{name}.json"));
        let cases = golden["texts"].as_array().unwrap();
        assert!(cases.len() > 10);
        let options = EncodeOptions { add_special_tokens: false, special_text: SpecialText::Parse };
        for case in cases {
            let text = case["text"].as_str().unwrap();
            assert_eq!(
                tokenizer.encode(text, options).unwrap(),
                ids(&case["ids"]),
                "{name} {text:?}"
            );
            let text_again = tokenizer.decode(&ids(&case["ids"]), true).unwrap();
            assert_eq!(text_again, text, "{name}");
        }
        let text = cases[0]["text"].as_str().unwrap();
        let with_special = tokenizer.encode(text, EncodeOptions::default()).unwrap();
        assert_eq!(with_special, ids(&golden["with_special"]), "{name}");
    }
}

/// llama.cpp's vocabularies of published models, with the tokens of difficult texts from those models' own
/// code.
#[test]
#[ignore = "reads 60 MB: NESTLING_VOCABULARIES names llama.cpp's folder `models`"]
fn tokens_of_published_vocabularies() {
    let folder = std::env::var("NESTLING_VOCABULARIES").unwrap();
    let names = [
        "qwen2",
        "qwen35",
        "gpt-2",
        "refact",
        "starcoder",
        "command-r",
        "llama-bpe",
        "llama-spm",
        "deepseek-llm",
        "deepseek-coder",
        "gemma-4",
        "phi-3",
    ];
    for name in names {
        let path = Path::new(&folder).join(format!("ggml-vocab-{name}.gguf"));
        let tokenizer = tokenizer(&path);
        let read =
            |ending: &str| std::fs::read_to_string(format!("{}.{ending}", path.display())).unwrap();
        let (texts, expected) = (read("inp"), read("out"));
        let cases = texts.split("\n__ggml_vocab_test__\n").zip(expected.lines());
        for (text, expected) in cases {
            let expected: Vec<u32> =
                expected.split_whitespace().map(|id| id.parse().unwrap()).collect();
            let options =
                EncodeOptions { add_special_tokens: false, special_text: SpecialText::Plain };
            assert_eq!(tokenizer.encode(text, options).unwrap(), expected, "{name} {text:?}");
        }
    }
}

/// Returns a file with a pre-tokenizer's name and one token.
fn file_with(pre: &str) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let key = |name: &str, value: &str| [text(name), vec![8, 0, 0, 0], text(value)].concat();
    let texts = |name: &str, values: &[&str]| {
        let head = [9u32.to_le_bytes(), 8u32.to_le_bytes()].concat();
        let count = (values.len() as u64).to_le_bytes().to_vec();
        let values = values.iter().flat_map(|value| text(value)).collect();
        [text(name), head, count, values].concat()
    };
    [
        [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes(), &4u64.to_le_bytes()].concat(),
        key("tokenizer.ggml.model", "gpt2"),
        key("tokenizer.ggml.pre", pre),
        texts("tokenizer.ggml.tokens", &["a"]),
        texts("tokenizer.ggml.merges", &[]),
    ]
    .concat()
}

/// Words of texts in many scripts, as split by the published tokenizers: `scripts/make_split_goldens.py`.
#[test]
fn texts_are_cut_as_published_tokenizers_cut_them() {
    let golden = super::json("splits.json");
    let texts: Vec<&str> =
        golden["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    assert!(texts.len() > 15);
    let splits = golden["splits"].as_object().unwrap();
    assert_eq!(splits.len(), 9);
    for (name, expected) in splits {
        let file = file_with(name);
        let header = GgufHeader::parse(name, &file, file.len() as u64).unwrap();
        let json = tokenizer_json(&header.metadata).unwrap();
        let tokenizer = tokenizers::Tokenizer::from_bytes(&json).unwrap();
        let splitter = tokenizer.get_pre_tokenizer().unwrap();
        for (text, expected) in texts.iter().zip(expected.as_array().unwrap()) {
            let mut pieces = PreTokenizedString::from(*text);
            splitter.pre_tokenize(&mut pieces).unwrap();
            let pieces = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
            let found: Vec<&str> =
                pieces.into_iter().map(|(_, (start, end), _)| &text[start..end]).collect();
            let expected: Vec<&str> =
                expected.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
            assert_eq!(found, expected, "{name}");
        }
    }
}
