//! Cache of the tokens of words.
//!
//! The library's own cache is per thread: its entries stay until the thread ends, even after the tokenizer is
//! dropped.

use std::collections::HashMap;
use std::sync::Mutex;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::Token;
use tokenizers::models::bpe::{BPE, BpeBuilder, Merges, Vocab};

/// Maximum number of cached words, and maximum length of one in bytes: the same as in the library.
const WORDS_MAX: usize = 10_000;
const WORD_BYTES_MAX: usize = 256;

/// Words of one tokenizer and their tokens.
#[derive(Debug, Default)]
pub(super) struct WordCache {
    words: Mutex<HashMap<Box<str>, Box<[Token]>>>,
}

impl WordCache {
    /// Returns the tokens of a word from the cache, or the result of `split`. Threads do not wait for each
    /// other.
    ///
    /// # Errors
    /// Returns the errors of `split`.
    pub(super) fn tokens(
        &self,
        word: &str,
        split: impl FnOnce() -> tokenizers::Result<Vec<Token>>,
    ) -> tokenizers::Result<Vec<Token>> {
        if word.len() >= WORD_BYTES_MAX {
            return split();
        }
        if let Ok(words) = self.words.try_lock()
            && let Some(tokens) = words.get(word)
        {
            return Ok(tokens.to_vec());
        }
        let tokens = split()?;
        if let Ok(mut words) = self.words.try_lock()
            && words.len() < WORDS_MAX
        {
            words.insert(word.into(), tokens.as_slice().into());
        }
        Ok(tokens)
    }
}

#[derive(Deserialize)]
struct File {
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    vocab: Vocab,
    merges: FileMerges,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum FileMerges {
    Pairs(Merges),
    Lines(Vec<String>),
}

impl FileMerges {
    fn pairs(self) -> Result<Merges, String> {
        let split = |line: String| match line.split_once(' ') {
            Some((first, second)) if !second.contains(' ') => Ok((first.into(), second.into())),
            _ => Err(format!("a merge of two words: {line:?}")),
        };
        match self {
            Self::Pairs(pairs) => Ok(pairs),
            Self::Lines(lines) => {
                lines.into_iter().filter(|line| !line.starts_with("#version")).map(split).collect()
            }
        }
    }
}

/// Builds the model of a checked file, without the library's cache.
///
/// # Errors
/// Returns a description of the fault.
pub(super) fn model(json: Value) -> Result<BPE, String> {
    let file: File = serde_json::from_value(json).map_err(|error| error.to_string())?;
    let mut builder = BpeBuilder::new()
        .cache_capacity(0)
        .vocab_and_merges(file.vocab, file.merges.pairs()?)
        // Default: absent settings are off.
        .fuse_unk(file.fuse_unk.unwrap_or(false))
        .byte_fallback(file.byte_fallback.unwrap_or(false))
        .ignore_merges(file.ignore_merges.unwrap_or(false));
    if let Some(unknown) = file.unk_token {
        builder = builder.unk_token(unknown);
    }
    if let Some(prefix) = file.continuing_subword_prefix {
        builder = builder.continuing_subword_prefix(prefix);
    }
    if let Some(suffix) = file.end_of_word_suffix {
        builder = builder.end_of_word_suffix(suffix);
    }
    builder.build().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_split_once() {
        let (cache, mut splits) = (WordCache::default(), 0);
        let token = || vec![Token::new(7, "ab".into(), (0, 2))];
        for _ in 0..3 {
            let tokens = cache.tokens("ab", || {
                splits += 1;
                Ok(token())
            });
            assert_eq!(tokens.unwrap(), token());
        }
        assert_eq!(splits, 1);
        assert!(cache.tokens("cd", || Err("no".into())).is_err());
        assert_eq!(cache.tokens("cd", || Ok(token())).unwrap(), token(), "an error is not kept");
    }

    #[test]
    fn it_is_bounded() {
        let cache = WordCache::default();
        for word in 0..WORDS_MAX + 10 {
            cache.tokens(&word.to_string(), || Ok(vec![])).unwrap();
        }
        cache.tokens(&"a".repeat(WORD_BYTES_MAX), || Ok(vec![])).unwrap();
        assert_eq!(cache.words.lock().unwrap().len(), WORDS_MAX);
    }

    /// Reads merges as pairs and as lines, and all settings, like the library.
    #[test]
    fn a_file_is_read_as_the_library_reads_it() {
        for merges in [
            serde_json::json!([["a", "b"], ["ab", "c"]]),
            serde_json::json!(["#version: 0.2", "a b", "ab c"]),
        ] {
            for settings in [
                serde_json::json!({}),
                serde_json::json!({ "unk_token": "c", "fuse_unk": true, "byte_fallback": null, "ignore_merges": true }),
            ] {
                let mut json = serde_json::json!({ "vocab": { "a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4 }, "merges": merges });
                json.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
                let theirs: BPE = serde_json::from_value(json.clone()).unwrap();
                let ours = model(json).unwrap();
                // Compares everything except the contents of the cache.
                for word in ["abcab", "cab", "xxa", "abc"] {
                    let tokens = |model: &BPE| tokenizers::Model::tokenize(model, word).unwrap();
                    assert_eq!(tokens(&ours), tokens(&theirs), "{word}");
                }
            }
        }
        assert!(model(serde_json::json!({ "vocab": {}, "merges": ["a"] })).is_err());
        assert!(model(serde_json::json!({ "vocab": {} })).is_err());
    }
}
