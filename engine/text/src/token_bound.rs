//! Lower bound on the number of tokens of a text, computed without tokenizing it.

use serde_json::{Map, Value};

use super::spelling::byte_characters;

/// Maximum factor by which NFC shrinks non-ASCII text, in bytes. ASCII alone does not shrink.
const NFC_SHRINKS: usize = 4;

/// Maximum number of bytes of a text that one token can represent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TokenBound {
    /// Maximum number of bytes of normalized text per token.
    bytes_max: usize,
    /// Factor by which normalization may shrink non-ASCII text.
    shrinks: usize,
}

impl TokenBound {
    /// Derives the bound. Returns `None` for a tokenizer that may drop text or map text of any length to one
    /// token.
    pub fn of(json: &Value) -> Option<Self> {
        let model = json.get("model")?;
        let vocab = model.get("vocab")?.as_object()?;
        // Default: an absent affix is an empty one.
        let affix = |name: &str| model.get(name).and_then(Value::as_str).unwrap_or_default();
        if !affix("continuing_subword_prefix").is_empty() || !affix("end_of_word_suffix").is_empty()
        {
            return None;
        }
        let shrinks = shrinks(json.get("normalizer"))?;
        let words = match keeps(json.get("pre_tokenizer"))? {
            SplitOutput::Bytes => longest_of_characters(vocab)?,
            SplitOutput::Text => longest_of_text(model, vocab)?,
        };
        let added = json.get("added_tokens").and_then(Value::as_array);
        let added = added.into_iter().flatten().map(added_bytes);
        // Default: there may be no added tokens.
        let added = added.collect::<Option<Vec<_>>>()?.into_iter().max().unwrap_or(0);
        Some(Self { bytes_max: words.max(added).max(1), shrinks })
    }

    /// Returns the minimum number of tokens for a text of `ascii` ASCII bytes and `others` other bytes.
    pub fn least_tokens(&self, ascii: usize, others: usize) -> usize {
        (ascii + others / self.shrinks).div_ceil(self.bytes_max)
    }
}

/// Form of the text that a splitter passes to the model.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SplitOutput {
    Text,
    /// One character per byte of the text.
    Bytes,
}

/// Returns the factor by which a normalizer may shrink non-ASCII text, or `None` if it may drop text.
fn shrinks(normalizer: Option<&Value>) -> Option<usize> {
    let Some(normalizer) = normalizer.filter(|value| !value.is_null()) else { return Some(1) };
    let text = |name: &str| normalizer.get(name).and_then(Value::as_str);
    match text("type")? {
        "NFC" => Some(NFC_SHRINKS),
        "Prepend" => Some(1),
        "Replace" => {
            let pattern = normalizer.get("pattern")?.get("String")?.as_str()?;
            (text("content")?.len() >= pattern.len()).then_some(1)
        }
        "Sequence" => {
            let steps = normalizer.get("normalizers")?.as_array()?;
            steps
                .iter()
                .try_fold(1, |product: usize, step| product.checked_mul(shrinks(Some(step))?))
        }
        _ => None,
    }
}

/// Returns the output form of a splitter, or `None` if it may drop text.
fn keeps(splitter: Option<&Value>) -> Option<SplitOutput> {
    let Some(splitter) = splitter.filter(|value| !value.is_null()) else {
        return Some(SplitOutput::Text);
    };
    match splitter.get("type")?.as_str()? {
        "ByteLevel" => Some(SplitOutput::Bytes),
        "Digits" | "Metaspace" => Some(SplitOutput::Text),
        "Split" => (splitter.get("behavior")?.as_str()? != "Removed").then_some(SplitOutput::Text),
        "Sequence" => {
            let steps = splitter.get("pretokenizers")?.as_array()?;
            let kept: Vec<SplitOutput> =
                steps.iter().map(|step| keeps(Some(step))).collect::<Option<_>>()?;
            // A second byte-level step would encode the encoded characters again.
            match kept.iter().filter(|kept| **kept == SplitOutput::Bytes).count() {
                0 => Some(SplitOutput::Text),
                1 => Some(SplitOutput::Bytes),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Returns the length in characters of the longest word of a byte-level vocabulary. Returns `None` if a byte
/// is missing, since the model then drops text.
fn longest_of_characters(vocab: &Map<String, Value>) -> Option<usize> {
    let whole = byte_characters().all(|character| vocab.contains_key(&character.to_string()));
    whole.then(|| vocab.keys().map(|word| word.chars().count()).max())?
}

/// Returns the length in bytes of the longest word of a byte-fallback vocabulary, or `None` if a byte is
/// missing.
fn longest_of_text(model: &Value, vocab: &Map<String, Value>) -> Option<usize> {
    let falls_back = model.get("byte_fallback").and_then(Value::as_bool) == Some(true);
    let whole = (0..=u8::MAX).all(|byte| vocab.contains_key(&format!("<0x{byte:02X}>")));
    (falls_back && whole).then(|| vocab.keys().map(String::len).max())?
}

/// Returns the length of an added token in bytes, or `None` if the token absorbs the white space around it.
fn added_bytes(token: &Value) -> Option<usize> {
    let strips =
        ["lstrip", "rstrip"].iter().any(|name| token.get(name) == Some(&Value::Bool(true)));
    (!strips).then(|| token.get("content").and_then(Value::as_str).map_or(0, str::len))
}
