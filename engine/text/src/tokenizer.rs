//! Tokenizer of a model, built from the bytes of its `tokenizer.json`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokenizers::models::bpe::BPE;
use tokenizers::{
    AddedToken, DecoderWrapper, Model as _, OffsetReferential, OffsetType, PostProcessorWrapper,
    PreTokenizedString, PreTokenizerWrapper, TokenizerImpl,
};

use super::TextError;
use super::encode_stop::EncodeStop;
use super::limits::{
    BYTES_PER_TEXT_BYTE, BYTES_PER_WORD, BYTES_PER_WORD_BYTE, ENCODE_BYTES_MAX, FOUND_CHARS_MAX,
    TEXT_BYTES_MAX, TOKENIZER_BYTES_MAX, VALUES_MAX, VOCAB_SIZE_MAX,
};
use super::spelling::Spelling;
use super::token_bound::TokenBound;
use super::tokenizer_parts::{Fault, check_parts};
use super::word_cache::{self, WordCache};
use super::word_split::{Normalizers, Splitters, StoppableNormalizer};

/// The library's tokenizer. It does not split text; [`Splitters`] do.
type Library =
    TokenizerImpl<BPE, Normalizers, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// Treatment of the text of an added token inside a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpecialText {
    /// The text becomes the token (`<|im_end|>` ends a message), as in `transformers` by default.
    #[default]
    Parse,
    /// The text becomes ordinary tokens that spell it. Use this for untrusted text.
    Plain,
}

/// Options of an encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeOptions {
    /// True to add the tokens that the model expects around a text (a begin token, for models that have one).
    pub add_special_tokens: bool,
    /// Treatment of the text of special tokens.
    pub special_text: SpecialText,
}

impl Default for EncodeOptions {
    fn default() -> Self {
        Self { add_special_tokens: true, special_text: SpecialText::Parse }
    }
}

/// A tokenizer; cheap to clone.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    tokenizer: Library,
    words: WordCache,
    splitters: Splitters,
    /// Maximum factor by which normalizers may lengthen a text.
    growth: usize,
    /// Token texts in id order; `None` for gaps and padding of the vocabulary.
    tokens: Vec<Option<TokenEntry>>,
    /// True if the tokens decode independently of their neighbours.
    has_bytes: bool,
    /// Added tokens, sorted by text: text, and whether the token is special.
    added: Vec<(String, bool)>,
    /// Bound on the bytes per token; `None` if the length of a text does not bound its tokens.
    bound: Option<TokenBound>,
}

#[derive(Debug)]
struct TokenEntry {
    bytes: Box<[u8]>,
    special: bool,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`. `file` is its name in errors.
    ///
    /// ```
    /// use nestling_text::{EncodeOptions, Tokenizer};
    ///
    /// # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/demo_tokenizer.json");
    /// let tokenizer = Tokenizer::from_bytes("tokenizer.json", &std::fs::read(file)?)?;
    /// let tokens = tokenizer.encode("Once upon a time", EncodeOptions::default())?;
    /// assert_eq!(tokenizer.decode(&tokens, false)?, "Once upon a time");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_bytes(file: &str, bytes: &[u8]) -> Result<Self, TextError> {
        if bytes.len() > TOKENIZER_BYTES_MAX {
            let what = "tokenizer.json";
            return Err(TextError::TooLarge {
                what,
                found: bytes.len(),
                limit: TOKENIZER_BYTES_MAX,
            });
        }
        let invalid = |what: &str, expected: &str, found: String| TextError::Invalid {
            file: file.into(),
            what: what.into(),
            expected: expected.into(),
            // A value quoted from the file may be as long as the file.
            found: found.chars().take(FOUND_CHARS_MAX).collect(),
        };
        let values = count_values(bytes);
        if values > VALUES_MAX {
            return Err(invalid("content", "at most 6291456 values", values.to_string()));
        }
        let mut json: Value = serde_json::from_slice(bytes)
            .map_err(|error| invalid("content", "JSON", error.to_string()))?;
        let fault = |(what, expected, found): Fault| invalid(what, expected, found);
        let growth = check(&json).and_then(|()| check_parts(&json)).map_err(fault)?;
        let spelling = Spelling::of(json.get("decoder"));
        let bound = TokenBound::of(&json);
        let splitters = Splitters::of(&json).map_err(fault)?;
        let tokenizer = caught("reading it", || library(&mut json))?.map_err(fault)?;
        drop(json);
        let tokens = token_entries(&tokenizer, spelling.as_ref());
        let decoder = tokenizer.get_added_tokens_decoder();
        let mut added: Vec<_> =
            decoder.values().map(|token| (token.content.clone(), token.special)).collect();
        added.sort();
        let has_bytes = spelling.is_some();
        let words = WordCache::default();
        let inner = Inner { tokenizer, words, splitters, growth, tokens, has_bytes, added, bound };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns the number of token ids. A model's vocabulary may be padded beyond it.
    pub fn vocab_size(&self) -> usize {
        self.inner.tokens.len()
    }

    /// Returns a lower bound on the number of tokens that [`Self::encode`] makes of a text, from its length
    /// alone. The bound is 0 if the length does not determine one.
    pub fn least_tokens(&self, text: &str) -> usize {
        let ascii = text.bytes().filter(u8::is_ascii).count();
        self.least_of(ascii, text.len() - ascii)
    }

    /// Does the same as [`Self::least_tokens`], for a text of `ascii` ASCII bytes and `others` other bytes.
    pub(super) fn least_of(&self, ascii: usize, others: usize) -> usize {
        self.inner.bound.map_or(0, |bound| bound.least_tokens(ascii, others))
    }

    /// Encodes a text to token ids.
    ///
    /// ```
    /// use nestling_text::{EncodeOptions, SpecialText};
    ///
    /// # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/demo_tokenizer.json");
    /// # let tokenizer = nestling_text::Tokenizer::from_bytes(file, &std::fs::read(file)?)?;
    /// let parse = EncodeOptions::default();
    /// assert_eq!(tokenizer.encode("<|im_end|>", parse)?, [2]);
    /// let plain = EncodeOptions { special_text: SpecialText::Plain, ..parse };
    /// assert!(tokenizer.encode("<|im_end|>", plain)?.len() > 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails with [`TextError::TooLarge`] before anything is computed, and with
    /// [`TextError::EncodingDeadline`] if the tokenizer exceeds a time that no valid one needs.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, TextError> {
        self.encode_until(text, options, &|| false)
    }

    /// Does the same as [`Self::encode`], but fails with [`TextError::EncodingCancelled`] once `cancelled`
    /// returns `true`. `cancelled` is called between words; a pass over the whole text is not interrupted.
    ///
    /// # Errors
    /// Fails like [`Self::encode`].
    pub fn encode_until(
        &self,
        text: &str,
        options: EncodeOptions,
        cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<u32>, TextError> {
        self.check_text(text)?;
        self.encode_stopped(text, options, &EncodeStop::new(text.len(), cancelled))
    }

    /// Checks the length of a text.
    ///
    /// # Errors
    /// Fails with [`TextError::TooLarge`] if the text exceeds the limit in bytes.
    pub fn check_text(&self, text: &str) -> Result<(), TextError> {
        let grown = ENCODE_BYTES_MAX / BYTES_PER_TEXT_BYTE / self.inner.growth.max(1);
        let (found, limit) = (text.len(), TEXT_BYTES_MAX.min(grown));
        match found <= limit {
            true => Ok(()),
            false => Err(TextError::TooLarge { what: "text", found, limit }),
        }
    }

    pub(super) fn encode_stopped(
        &self,
        text: &str,
        options: EncodeOptions,
        stop: &EncodeStop<'_>,
    ) -> Result<Vec<u32>, TextError> {
        caught("encoding a text", || {
            let pieces = match options.special_text {
                SpecialText::Parse => self.extract(text, stop),
                SpecialText::Plain => self.normalize(text, stop),
            };
            self.encode_pieces(pieces?, options.add_special_tokens, stop)
        })?
        .map_err(|error| stop.error(&error))
    }

    /// Encodes text in which `marker` breaks the text of added tokens that must stay plain. Unbroken added
    /// tokens become tokens; the rest is tokenized as plain text without the marker.
    pub(super) fn encode_marked(
        &self,
        text: &str,
        marker: char,
        cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<u32>, TextError> {
        self.check_text(text)?;
        let stop = EncodeStop::new(text.len(), cancelled);
        let none: Option<&Normalizers> = None;
        let added = self.inner.tokenizer.get_added_vocabulary();
        let found = caught("encoding a text", || added.extract_and_normalize(none, text))?;
        let mut out = Vec::new();
        for (piece, _, tokens) in found.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            match tokens {
                Some(tokens) => out.extend(tokens.iter().map(|token| token.id)),
                None => {
                    let options = EncodeOptions {
                        add_special_tokens: false,
                        special_text: SpecialText::Plain,
                    };
                    out.extend(self.encode_stopped(&piece.replace(marker, ""), options, &stop)?);
                }
            }
        }
        Ok(out)
    }

    /// Splits a text into its added tokens and the normalized text between them.
    fn extract(&self, text: &str, stop: &EncodeStop<'_>) -> tokenizers::Result<PreTokenizedString> {
        let tokenizer = &self.inner.tokenizer;
        let normalizers = tokenizer.get_normalizer();
        let normalizer = normalizers.map(|normalizers| StoppableNormalizer { normalizers, stop });
        let added = tokenizer.get_added_vocabulary();
        let pieces = added.extract_and_normalize(normalizer.as_ref(), text);
        stop.look().map(|()| pieces)
    }

    /// Normalizes a text without searching it for added tokens.
    fn normalize(
        &self,
        text: &str,
        stop: &EncodeStop<'_>,
    ) -> tokenizers::Result<PreTokenizedString> {
        let mut pieces = PreTokenizedString::from(text);
        if let Some(normalizers) = self.inner.tokenizer.get_normalizer() {
            let normalizer = StoppableNormalizer { normalizers, stop };
            pieces.normalize(|piece| tokenizers::Normalizer::normalize(&normalizer, piece))?;
        }
        Ok(pieces)
    }

    fn encode_pieces(
        &self,
        mut pieces: PreTokenizedString,
        add_special_tokens: bool,
        stop: &EncodeStop<'_>,
    ) -> tokenizers::Result<Vec<u32>> {
        let tokenizer = &self.inner.tokenizer;
        for (text, _, _) in pieces.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            stop.hold(text.len().saturating_mul(BYTES_PER_TEXT_BYTE))?;
        }
        self.inner.splitters.run(&mut pieces, stop)?;
        pieces.tokenize(|piece| {
            stop.step()?;
            stop.hold(BYTES_PER_WORD)?;
            stop.check_bytes(piece.get().len().saturating_mul(BYTES_PER_WORD_BYTE))?;
            let word = piece.get();
            self.inner.words.tokens(word, || tokenizer.get_model().tokenize(word))
        })?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::None)?;
        let encoding = tokenizer.post_process(encoding, None, add_special_tokens)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Decodes token ids to text. Special tokens are omitted unless `keep_special` is set. Bytes that are not
    /// UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32], keep_special: bool) -> Result<String, TextError> {
        for id in ids {
            self.check_id(*id)?;
        }
        if self.inner.has_bytes {
            let kept = ids.iter().filter(|id| keep_special || !self.is_special(**id));
            // Default: an unassigned id has no bytes.
            let bytes: Vec<u8> =
                kept.flat_map(|id| self.token_bytes(*id).unwrap_or_default()).copied().collect();
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
        let decode = || self.inner.tokenizer.decode(ids, !keep_special);
        caught("decoding tokens", decode)?.map_err(refused)
    }

    /// Returns the id of a token given by its exact text, such as `<|im_end|>`.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.tokenizer.token_to_id(token)
    }

    /// Returns the bytes of a token if the vocabulary decodes tokens independently of their neighbours:
    /// byte-level vocabularies, and byte-fallback ones with spaces as `▁`. Returns `None` for other
    /// vocabularies and for ids outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        let entry = self.entry(id)?;
        self.inner.has_bytes.then_some(&entry.bytes)
    }

    /// Returns whether a token is special: it has a meaning, but no text.
    pub fn is_special(&self, id: u32) -> bool {
        self.entry(id).is_some_and(|entry| entry.special)
    }

    /// Returns the added tokens: their text, and whether each is special.
    pub fn added_texts(&self) -> impl Iterator<Item = (&str, bool)> {
        self.inner.added.iter().map(|(text, special)| (text.as_str(), *special))
    }

    /// Returns whether a text is that of an added token.
    pub fn is_added(&self, text: &str) -> bool {
        let text_of = |token: &(String, bool)| token.0.as_str().cmp(text);
        self.inner.added.binary_search_by(text_of).is_ok()
    }

    pub(super) fn has_bytes(&self) -> bool {
        self.inner.has_bytes
    }

    /// Returns an error if an id is outside the vocabulary. Gaps inside it are tokens without text.
    pub fn check_id(&self, id: u32) -> Result<(), TextError> {
        let vocab_size = self.vocab_size();
        match usize::try_from(id) {
            Ok(index) if index < vocab_size => Ok(()),
            _ => Err(TextError::UnknownToken { id, vocab_size }),
        }
    }

    fn entry(&self, id: u32) -> Option<&TokenEntry> {
        self.inner.tokens.get(usize::try_from(id).ok()?)?.as_ref()
    }
}

/// Runs the tokenizer library and converts a panic to an error, since the library's state came from a model's
/// file.
fn caught<T>(what: &'static str, run: impl FnOnce() -> T) -> Result<T, TextError> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|_| TextError::TokenizerPanicked { what })
}

/// Returns the number of values of a JSON text, or slightly more: counts separators outside of strings.
pub(super) fn count_values(bytes: &[u8]) -> usize {
    let (mut count, mut is_text, mut is_escaped) = (1, false, false);
    for byte in bytes {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b',' | b':' | b'[' | b'{' if !is_text => count += 1,
            _ => {}
        }
    }
    count
}

fn refused(error: tokenizers::Error) -> TextError {
    TextError::Tokenize { reason: error.to_string() }
}

/// Builds the library's tokenizer from the parts of a checked file, because the library would parse the whole
/// file again. Truncation and padding are ignored: they belong to training, and a prompt is never cut
/// silently.
fn library(json: &mut Value) -> Result<Library, Fault> {
    if let Some(version) = json.get("version").filter(|version| *version != "1.0") {
        return Err(("version", "a tokenizer of version 1.0", version.to_string()));
    }
    let mut model = json.get_mut("model").map_or(Value::Null, Value::take);
    model.as_object_mut().map(|model| model.remove("type"));
    let model = word_cache::model(model)
        .map_err(|error| ("model", "a part that the library reads", error))?;
    let mut library = Library::new(model);
    let failed = |error: tokenizers::Error| ("added_tokens", "tokens", error.to_string());
    library.with_normalizer(Normalizers::of(json)?).map_err(failed)?;
    let of = |kind| json.get(kind).filter(|part| !part.is_null()).cloned();
    let processor: Option<PostProcessorWrapper> =
        of("post_processor").map(|json| part("post_processor", json)).transpose()?;
    library.with_post_processor(processor);
    let decoder: Option<DecoderWrapper> =
        of("decoder").map(|json| part("decoder", json)).transpose()?;
    library.with_decoder(decoder);
    if let Some(added) = json.get_mut("added_tokens") {
        let added: Vec<AddedToken> = part("added_tokens", added.take())?;
        library.add_tokens(added).map_err(failed)?;
    }
    Ok(library)
}

fn part<T: DeserializeOwned>(what: &'static str, json: Value) -> Result<T, Fault> {
    serde_json::from_value(json)
        .map_err(|error| (what, "a part that the library reads", error.to_string()))
}

/// Checks the parts of the file that the tokenizer library does not validate.
fn check(json: &Value) -> Result<(), Fault> {
    let model = json.get("model").ok_or(("model", "an object", "nothing".to_owned()))?;
    let kind = model.get("type").and_then(Value::as_str).unwrap_or("BPE");
    if kind != "BPE" {
        return Err(("model.type", "BPE", kind.into()));
    }
    if model.get("dropout").and_then(Value::as_f64).is_some_and(|dropout| dropout != 0.0) {
        return Err(("model.dropout", "none, or every tokenization differs", "a number".into()));
    }
    let vocab = model.get("vocab").and_then(Value::as_object);
    let vocab = vocab.ok_or(("model.vocab", "an object", "something else".to_owned()))?;
    let mut seen = vec![false; vocab.len().saturating_mul(2).min(VOCAB_SIZE_MAX)];
    for (token, id) in vocab {
        let id = check_id("model.vocab", token, Some(id))?;
        if id >= seen.len() {
            seen.resize(id + 1, false);
        }
        if std::mem::replace(&mut seen[id], true) {
            return Err(("model.vocab", "every id once", format!("id {id} again at {token:?}")));
        }
    }
    check_merges(model, vocab)?;
    let added = json.get("added_tokens").and_then(Value::as_array);
    for token in added.into_iter().flatten() {
        // Default: an absent text is rejected like an empty one.
        let content = token.get("content").and_then(Value::as_str).unwrap_or_default();
        if content.is_empty() {
            return Err(("added_tokens", "a text for every token", "an empty one".into()));
        }
        check_id("added_tokens", content, token.get("id"))?;
    }
    Ok(())
}

/// Checks that each merge joins two words of the vocabulary to a third. The library removes the prefix of
/// continuing words by its length in bytes, without checking that it is present.
fn check_merges(model: &Value, vocab: &Map<String, Value>) -> Result<(), Fault> {
    // Default: an absent prefix is an empty one.
    let prefix = model.get("continuing_subword_prefix").and_then(Value::as_str).unwrap_or_default();
    if !prefix.is_ascii() {
        return Err(("model.continuing_subword_prefix", "ASCII", format!("{prefix:?}")));
    }
    let merges = model.get("merges").and_then(Value::as_array);
    for merge in merges.into_iter().flatten() {
        let pair = match merge {
            Value::String(both) => both.split_once(' '),
            Value::Array(pair) => match &pair[..] {
                [Value::String(first), Value::String(second)] => Some((&first[..], &second[..])),
                _ => None,
            },
            _ => None,
        };
        let word = pair.and_then(|(first, second)| {
            let known = vocab.contains_key(first) && vocab.contains_key(second);
            second.strip_prefix(prefix).filter(|_| known).map(|rest| [first, rest].concat())
        });
        if word.is_none_or(|word| !vocab.contains_key(&word)) {
            return Err(("model.merges", "two words that make a third", merge.to_string()));
        }
    }
    Ok(())
}

fn check_id(what: &'static str, token: &str, id: Option<&Value>) -> Result<usize, Fault> {
    let number = id.and_then(Value::as_u64).and_then(|id| usize::try_from(id).ok());
    match number {
        Some(id) if id < VOCAB_SIZE_MAX => Ok(id),
        _ => {
            let found = id.map_or("nothing".into(), Value::to_string);
            Err((what, "ids below 4194304", format!("{found} for {token:?}")))
        }
    }
}

fn token_entries(tokenizer: &Library, spelling: Option<&Spelling>) -> Vec<Option<TokenEntry>> {
    let vocab = tokenizer.get_vocab(true);
    let size = vocab.values().max().map_or(0, |max| *max as usize + 1).min(VOCAB_SIZE_MAX);
    let added = tokenizer.get_added_vocabulary();
    let mut entries: Vec<Option<TokenEntry>> = Vec::new();
    entries.resize_with(size, || None);
    for (text, id) in vocab {
        let special = added.is_special_token(&text);
        let bytes = spelling.map_or_else(Box::default, |spelling| spelling.bytes(&text));
        if let Some(entry) = entries.get_mut(id as usize) {
            // An added token replaces the word of the same id.
            if entry.is_none() || added.get_vocab().contains_key(&text) {
                *entry = Some(TokenEntry { bytes, special });
            }
        }
    }
    entries
}

#[cfg(test)]
impl Tokenizer {
    /// Decodes with the library itself.
    pub(super) fn inner_decode(&self, ids: &[u32]) -> String {
        self.inner.tokenizer.decode(ids, false).unwrap()
    }
}
