//! Tokenizers of arbitrary bytes or arbitrary parts, loaded and used to encode and decode texts. Panics of
//! the tokenizer library must be converted to errors.

#![no_main]

use std::sync::Once;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use nestling_text::{EncodeOptions, SpecialText, TextError, Tokenizer};
use serde_json::{Value, json};

/// A tokenizer part, selected by number, with a text and a number from the input.
#[derive(Arbitrary, Debug)]
struct Part {
    kind: u8,
    first: String,
    second: String,
    number: u32,
    flag: bool,
}

#[derive(Arbitrary, Debug)]
struct AddedToken {
    content: String,
    id: u16,
    single_word: bool,
    normalized: bool,
    special: bool,
    strip: bool,
}

#[derive(Arbitrary, Debug)]
enum Input {
    /// A tokenizer file.
    Bytes { file: Vec<u8>, text: String },
    /// A valid vocabulary with arbitrary parts.
    Parts {
        normalizers: Vec<Part>,
        pre_tokenizers: Vec<Part>,
        post_processors: Vec<Part>,
        decoders: Vec<Part>,
        added: Vec<AddedToken>,
        model: Model,
        text: String,
    },
}

#[derive(Arbitrary, Debug)]
struct Model {
    kind: u8,
    tokens: Vec<String>,
    merges: Vec<(u8, u8)>,
    byte_fallback: bool,
    fuse_unk: bool,
    ignore_merges: bool,
    affix: Option<String>,
    unknown: Option<u8>,
}

impl Part {
    fn pattern(&self) -> Value {
        let kind = if self.flag { "Regex" } else { "String" };
        json!({ kind: self.first })
    }

    fn behavior(&self) -> &'static str {
        ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
            [self.number as usize % 5]
    }

    fn character(&self) -> String {
        self.first.chars().next().unwrap_or('▁').into()
    }

    fn normalizer(&self) -> Value {
        match self.kind % 12 {
            0 => json!({"type": "NFC"}),
            1 => json!({"type": "NFD"}),
            2 => json!({"type": "NFKC"}),
            3 => json!({"type": "NFKD"}),
            4 => json!({"type": "Lowercase"}),
            5 => json!({"type": "Strip", "strip_left": self.flag, "strip_right": true}),
            6 => json!({"type": "StripAccents"}),
            7 => json!({"type": "Prepend", "prepend": self.first}),
            8 => json!({"type": "Nmt"}),
            9 => json!({"type": "BertNormalizer", "clean_text": true, "strip_accents": self.flag,
                "handle_chinese_chars": true, "lowercase": true}),
            10 => json!({"type": "ByteLevel"}),
            _ => json!({"type": "Replace", "pattern": self.pattern(), "content": self.second}),
        }
    }

    fn pre_tokenizer(&self) -> Value {
        match self.kind % 12 {
            0 => json!({"type": "ByteLevel", "add_prefix_space": self.flag, "trim_offsets": true,
                "use_regex": self.number % 2 == 0}),
            1 => json!({"type": "Digits", "individual_digits": self.flag}),
            2 => {
                let scheme = ["always", "never", "first"][self.number as usize % 3];
                json!({"type": "Metaspace", "replacement": self.character(), "split": self.flag,
                    "prepend_scheme": scheme})
            }
            3 => json!({"type": "Punctuation", "behavior": self.behavior()}),
            4 => json!({"type": "CharDelimiterSplit", "delimiter": self.character()}),
            5 => json!({"type": "FixedLength", "length": self.number}),
            6 => json!({"type": "UnicodeScripts"}),
            7 => json!({"type": "Whitespace"}),
            8 => json!({"type": "WhitespaceSplit"}),
            9 => json!({"type": "BertPreTokenizer"}),
            _ => json!({"type": "Split", "pattern": self.pattern(), "behavior": self.behavior(),
                "invert": self.number % 16 > 7}),
        }
    }

    fn post_processor(&self) -> Value {
        let piece = |name: &str| json!({"SpecialToken": {"id": name, "type_id": self.number % 3}});
        let sequence = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
        match self.kind % 4 {
            0 => json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": self.flag,
                "use_regex": true}),
            1 => json!({"type": "RobertaProcessing", "sep": [self.first, self.number],
                "cls": [self.second, 1], "trim_offsets": self.flag, "add_prefix_space": true}),
            2 => json!({"type": "BertProcessing", "sep": [self.first, self.number],
                "cls": [self.second, 1]}),
            _ => json!({"type": "TemplateProcessing",
                "single": [piece(&self.first), sequence(if self.flag { "A" } else { "B" })],
                "pair": [sequence("A"), sequence("B")],
                "special_tokens": {self.second.as_str(): {"id": self.second, "ids": [self.number],
                    "tokens": [self.second]}}}),
        }
    }

    fn decoder(&self) -> Value {
        match self.kind % 9 {
            0 => json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                "use_regex": true}),
            1 => json!({"type": "ByteFallback"}),
            2 => json!({"type": "Fuse"}),
            3 => json!({"type": "BPEDecoder", "suffix": self.first}),
            4 => json!({"type": "WordPiece", "prefix": self.first, "cleanup": self.flag}),
            5 => json!({"type": "CTC", "pad_token": self.first,
                "word_delimiter_token": self.second, "cleanup": self.flag}),
            6 => json!({"type": "Strip", "content": self.character(), "start": self.number % 8,
                "stop": u32::from(self.flag)}),
            7 => json!({"type": "Metaspace", "replacement": self.character(),
                "prepend_scheme": "always", "split": true}),
            _ => json!({"type": "Replace", "pattern": self.pattern(), "content": self.second}),
        }
    }
}

/// Returns null, the only part, or a sequence of several.
fn sequence(list: &str, parts: &[Part], json: impl Fn(&Part) -> Value) -> Value {
    match parts {
        [] => Value::Null,
        [one] => json(one),
        many => {
            json!({"type": "Sequence", list: many.iter().take(5).map(json).collect::<Vec<_>>()})
        }
    }
}

impl Model {
    fn json(&self) -> Value {
        let mut vocab = serde_json::Map::new();
        for token in ["a", "b", "e", "t", "h", " ", "Ġ", "▁", "ab", "th", "the", "<0x41>"] {
            vocab.insert(token.into(), vocab.len().into());
        }
        for token in self.tokens.iter().take(16) {
            let id = vocab.len();
            vocab.entry(token.as_str()).or_insert(id.into());
        }
        let names: Vec<String> = vocab.keys().cloned().collect();
        let name = |number: u8| names[usize::from(number) % names.len()].clone();
        let merges = self.merges.iter().take(16).map(|(a, b)| json!([name(*a), name(*b)]));
        let merges: Vec<Value> = merges.collect();
        let unknown = self.unknown.map(name);
        match self.kind % 8 {
            0 => json!({"type": "WordLevel", "vocab": vocab, "unk_token": unknown}),
            1 => json!({"type": "WordPiece", "vocab": vocab, "unk_token": unknown,
                "continuing_subword_prefix": self.affix, "max_input_chars_per_word": 100}),
            2 => {
                let vocab: Vec<Value> = names.iter().map(|name| json!([name, -1.5])).collect();
                json!({"type": "Unigram", "vocab": vocab, "unk_id": self.unknown,
                    "byte_fallback": self.byte_fallback})
            }
            _ => json!({"type": "BPE", "dropout": null, "unk_token": unknown,
                "continuing_subword_prefix": self.affix, "end_of_word_suffix": null,
                "fuse_unk": self.fuse_unk, "byte_fallback": self.byte_fallback,
                "ignore_merges": self.ignore_merges, "vocab": vocab, "merges": merges}),
        }
    }
}

fn file_of(input: &Input) -> (Vec<u8>, &str) {
    match input {
        Input::Bytes { file, text } => (file.clone(), text),
        Input::Parts {
            normalizers,
            pre_tokenizers,
            post_processors,
            decoders,
            added,
            model,
            text,
        } => {
            let added: Vec<Value> = added
                .iter()
                .take(8)
                .map(|token| {
                    json!({"id": token.id % 64, "content": token.content, "special": token.special,
                        "single_word": token.single_word, "normalized": token.normalized,
                        "lstrip": token.strip, "rstrip": token.strip})
                })
                .collect();
            let json = json!({
                "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
                "normalizer": sequence("normalizers", normalizers, Part::normalizer),
                "pre_tokenizer": sequence("pretokenizers", pre_tokenizers, Part::pre_tokenizer),
                "post_processor": sequence("processors", post_processors, Part::post_processor),
                "decoder": sequence("decoders", decoders, Part::decoder),
                "model": model.json(),
            });
            (json.to_string().into_bytes(), text)
        }
    }
}

/// Checks that a part was rejected by the list of allowed parts, not by catching a panic.
fn not_caught<T>(result: Result<T, TextError>, file: &[u8]) -> Option<T> {
    let is_caught = matches!(result, Err(TextError::TokenizerPanicked { .. }));
    assert!(!is_caught, "{:?}: {}", result.err(), String::from_utf8_lossy(file));
    result.ok()
}

fuzz_target!(|input: Input| {
    // libFuzzer aborts at each panic, even if it is caught, so its hook is replaced.
    static QUIET: Once = Once::new();
    QUIET.call_once(|| std::panic::set_hook(Box::new(|info| eprintln!("{info}"))));

    let (file, text) = file_of(&input);
    let Some(tokenizer) = not_caught(Tokenizer::from_bytes("fuzz", &file), &file) else { return };
    for special_text in [SpecialText::Parse, SpecialText::Plain] {
        for add_special_tokens in [false, true] {
            let options = EncodeOptions { add_special_tokens, special_text };
            let encoded = not_caught(tokenizer.encode(text, options), &file);
            let Some(tokens) = encoded else { continue };
            assert!(tokenizer.least_tokens(text) <= tokens.len(), "{text:?} {tokens:?}");
            not_caught(tokenizer.decode(&tokens, true), &file);
            let mut stream = tokenizer.decode_stream(false);
            for token in tokens {
                not_caught(stream.push(token), &file);
            }
            not_caught(stream.finish(), &file);
        }
    }
});
