//! Normalizers and pre-tokenizers of a `tokenizer.json`. The ones with regular expressions are implemented
//! here: each is compiled once, within a size limit, and can be stopped between two matches. The others are
//! the library's.

use fancy_regex::{Regex, RegexBuilder};
use serde::Deserialize;
use serde_json::Value;
use tokenizers::pattern::{Invert, Pattern};
use tokenizers::{
    NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType, Offsets,
    PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper, SplitDelimiterBehavior,
};

use super::encode_stop::EncodeStop;
use super::limits::{AUTOMATON_BYTES_MAX, BACKTRACKS_MAX, BYTES_PER_SPLIT};
use super::tokenizer_parts::Fault;

/// Normalization steps, applied before a text is split.
#[derive(Debug, Default)]
pub(super) struct Normalizers {
    steps: Vec<NormalizerStep>,
}

#[derive(Debug)]
enum NormalizerStep {
    Replace { regex: Regex, content: String },
    Library(NormalizerWrapper),
}

#[derive(Debug, Default)]
pub(super) struct Splitters {
    steps: Vec<SplitterStep>,
}

#[derive(Debug)]
enum SplitterStep {
    Split { regex: Regex, behavior: SplitDelimiterBehavior, is_inverted: bool },
    Library(PreTokenizerWrapper),
}

impl Normalizers {
    /// Reads the normalizers of a file whose parts have been checked. Returns `None` if the file has none.
    pub fn of(json: &Value) -> Result<Option<Self>, Fault> {
        let mut normalizers = Self::default();
        let mut add = |part: &Value| {
            let step = match of_type(part) {
                Some("Replace") => NormalizerStep::Replace {
                    regex: regex("normalizer", part)?,
                    content: field("normalizer", part, "content")?,
                },
                _ => NormalizerStep::Library(library("normalizer", part)?),
            };
            normalizers.steps.push(step);
            Ok(())
        };
        let Some(part) = json.get("normalizer").filter(|part| !part.is_null()) else {
            return Ok(None);
        };
        each_part(part, "normalizers", &mut add)?;
        Ok(Some(normalizers))
    }

    fn run(
        &self,
        text: &mut NormalizedString,
        stop: Option<&EncodeStop<'_>>,
    ) -> tokenizers::Result<()> {
        for step in &self.steps {
            stop.map_or(Ok(()), EncodeStop::look)?;
            match step {
                NormalizerStep::Replace { regex, content } => {
                    text.replace(Matches { regex, stop }, content)?;
                }
                NormalizerStep::Library(part) => part.normalize(text)?,
            }
        }
        Ok(())
    }
}

/// Called by the library when tokens are added. Texts to encode are normalized by [`StoppableNormalizer`].
impl Normalizer for Normalizers {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        self.run(text, None)
    }
}

/// Normalizers of one encoding, with its stop condition.
pub(super) struct StoppableNormalizer<'a> {
    pub normalizers: &'a Normalizers,
    pub stop: &'a EncodeStop<'a>,
}

impl Normalizer for StoppableNormalizer<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        self.normalizers.run(text, Some(self.stop))
    }
}

impl Splitters {
    /// Reads the splitters of a file whose parts have been checked.
    pub fn of(json: &Value) -> Result<Self, Fault> {
        let mut splitters = Self::default();
        let mut add = |part: &Value| {
            let step = match of_type(part) {
                Some("Split") => SplitterStep::Split {
                    regex: regex("pre_tokenizer", part)?,
                    behavior: field("pre_tokenizer", part, "behavior")?,
                    is_inverted: field("pre_tokenizer", part, "invert")?,
                },
                _ => SplitterStep::Library(library("pre_tokenizer", part)?),
            };
            splitters.steps.push(step);
            Ok(())
        };
        if let Some(part) = json.get("pre_tokenizer").filter(|part| !part.is_null()) {
            each_part(part, "pretokenizers", &mut add)?;
        }
        Ok(splitters)
    }

    /// Splits the pieces that have no tokens yet.
    pub fn run(
        &self,
        pieces: &mut PreTokenizedString,
        stop: &EncodeStop<'_>,
    ) -> tokenizers::Result<()> {
        for step in &self.steps {
            stop.look()?;
            match step {
                SplitterStep::Split { regex, behavior, is_inverted } => {
                    pieces.split(|_, text| {
                        let matches = Matches { regex, stop: Some(stop) };
                        match is_inverted {
                            true => text.split(Invert(matches), *behavior),
                            false => text.split(matches, *behavior),
                        }
                    })?
                }
                SplitterStep::Library(part) => {
                    stop.check_bytes(words_at_most(part, pieces).saturating_mul(BYTES_PER_SPLIT))?;
                    part.pre_tokenize(pieces)?;
                }
            }
        }
        stop.look()
    }
}

/// Returns an upper bound on the number of words that one of the library's splitters makes, from the
/// characters at which it may cut.
fn words_at_most(part: &PreTokenizerWrapper, pieces: &PreTokenizedString) -> usize {
    if matches!(part, PreTokenizerWrapper::ByteLevel(part) if !part.use_regex) {
        return 0;
    }
    let cuts = |character: char| match part {
        PreTokenizerWrapper::Digits(_) => character.is_numeric(),
        PreTokenizerWrapper::Metaspace(part) => {
            character == ' ' || character == part.get_replacement()
        }
        PreTokenizerWrapper::Punctuation(_) | PreTokenizerWrapper::Whitespace(_) => {
            !character.is_alphanumeric()
        }
        PreTokenizerWrapper::WhitespaceSplit(_) => character.is_whitespace(),
        PreTokenizerWrapper::ByteLevel(_) => !character.is_alphabetic(),
        _ => true,
    };
    let mut words = 0;
    for (text, _, tokens) in pieces.get_splits(OffsetReferential::Original, OffsetType::Byte) {
        let mut was_cut = true;
        for character in text.chars().filter(|_| tokens.is_none()) {
            let is_cut = cuts(character);
            words += usize::from(is_cut || was_cut);
            was_cut = is_cut;
        }
    }
    words
}

/// Matches of a regular expression, with the same semantics as the library's own pattern type.
struct Matches<'a> {
    regex: &'a Regex,
    stop: Option<&'a EncodeStop<'a>>,
}

impl Pattern for Matches<'_> {
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        if inside.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let mut end = 0;
        let mut found = Vec::new();
        // A match that exceeds the backtracking limit ends the search. The rest stays one piece, as in the
        // library.
        for next in self.regex.find_iter(inside).map_while(Result::ok) {
            if let Some(stop) = self.stop {
                stop.step()?;
                stop.check_bytes(found.len().saturating_mul(BYTES_PER_SPLIT))?;
            }
            if end != next.start() {
                found.push(((end, next.start()), false));
            }
            found.push(((next.start(), next.end()), true));
            end = next.end();
        }
        if end != inside.len() {
            found.push(((end, inside.len()), false));
        }
        Ok(found)
    }
}

fn of_type(part: &Value) -> Option<&str> {
    part.get("type").and_then(Value::as_str)
}

/// Calls `add` for each part, in order, including parts inside sequences. `list` is the key of a sequence's
/// list. The depth has already been checked.
fn each_part(
    part: &Value,
    list: &str,
    add: &mut impl FnMut(&Value) -> Result<(), Fault>,
) -> Result<(), Fault> {
    match part.get(list).and_then(Value::as_array) {
        Some(parts) if of_type(part) == Some("Sequence") => {
            parts.iter().try_for_each(|part| each_part(part, list, add))
        }
        _ => add(part),
    }
}

fn library<'a, T: Deserialize<'a>>(kind: &'static str, part: &'a Value) -> Result<T, Fault> {
    T::deserialize(part).map_err(|error| (kind, "a part that the library reads", error.to_string()))
}

fn field<'a, T: Deserialize<'a>>(
    kind: &'static str,
    part: &'a Value,
    name: &str,
) -> Result<T, Fault> {
    let value = part.get(name).unwrap_or(&Value::Null);
    T::deserialize(value).map_err(|error| (kind, "a sound part", format!("{name}: {error}")))
}

/// Compiles the regular expression of a part, or one that matches its literal text.
fn regex(kind: &'static str, part: &Value) -> Result<Regex, Fault> {
    let pattern = |name: &str| part.get("pattern").and_then(|pattern| pattern.get(name)?.as_str());
    let source = match (pattern("String"), pattern("Regex")) {
        (Some(text), None) => fancy_regex::escape(text),
        (None, Some(regex)) => regex.into(),
        _ => return Err((kind, "one pattern", "none, or two".into())),
    };
    let mut builder = RegexBuilder::new(&source);
    builder.delegate_size_limit(AUTOMATON_BYTES_MAX).backtrack_limit(BACKTRACKS_MAX);
    let built = builder.build();
    built.map_err(|error| (kind, "a regular expression of moderate size", error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fancy_regex::{Error, RuntimeError};

    /// Without the limit, the search takes 2^40 steps. Inner parts without look-around are matched in linear
    /// time, so the look-ahead must follow the repetition.
    #[test]
    fn backtracking_is_limited() {
        let part = serde_json::json!({"pattern": {"Regex": "(a+)+(?!a)b"}});
        let regex = regex("pre_tokenizer", &part).unwrap();
        let text = "a".repeat(40);
        let found = regex.find_iter(&text).next().unwrap();
        let is_limited =
            matches!(found, Err(Error::RuntimeError(RuntimeError::BacktrackLimitExceeded)));
        assert!(is_limited, "{found:?}");
        // The rest of a text becomes one piece, and what was found before it is kept.
        let text = format!("ab{text}");
        let found = Matches { regex: &regex, stop: None }.find_matches(&text).unwrap();
        assert_eq!(found, [((0, 2), true), ((2, text.len()), false)]);
    }

    #[test]
    fn automata_are_limited() {
        let compile = |source: &str| {
            let part = serde_json::json!({ "pattern": { "Regex": source } });
            regex("pre_tokenizer", &part)
        };
        assert!(compile("((a{2}){2}){2}").is_ok());
        assert!(compile("((a{100}){100}){100}").is_err());
    }
}
