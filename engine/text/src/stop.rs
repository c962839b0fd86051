//! Stop strings, found across the borders of tokens.

use super::TextError;

/// Most stop strings, and the longest.
const STOPS_MAX: usize = 64;
const STOP_BYTES_MAX: usize = 4096;

/// What may be shown after a piece of text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopOutput {
    /// Text that is safe to show: no stop string can still begin in it.
    pub text: String,
    /// Which stop string was found, by its place in the list. It is not part of the text.
    pub stopped: Option<usize>,
}

/// Watches a stream of text for stop strings and holds back what may be the start of one.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

impl StopMatcher {
    /// A matcher for `stops`; none is fine.
    pub fn new(stops: Vec<String>) -> Result<Self, TextError> {
        if stops.len() > STOPS_MAX {
            return Err(TextError::InvalidOption {
                what: "stop strings",
                expected: "at most 64",
                found: stops.len().to_string(),
            });
        }
        if let Some(stop) = stops.iter().find(|s| s.is_empty() || s.len() > STOP_BYTES_MAX) {
            return Err(TextError::InvalidOption {
                what: "stop string",
                expected: "1 to 4096 bytes",
                found: format!("{} bytes", stop.len()),
            });
        }
        Ok(Self { stops, held: String::new() })
    }

    /// Takes the next piece of text. After a stop, everything further is swallowed by the caller.
    pub fn push(&mut self, text: &str) -> StopOutput {
        if self.stops.is_empty() {
            return StopOutput { text: text.to_owned(), stopped: None };
        }
        self.held.push_str(text);
        let found = self.stops.iter().enumerate();
        let found = found.filter_map(|(index, stop)| Some((self.held.find(stop)?, index)));
        if let Some((at, index)) = found.min() {
            let mut text = std::mem::take(&mut self.held);
            text.truncate(at);
            return StopOutput { text, stopped: Some(index) };
        }
        let keep = longest_held(&self.held, self.stops.iter().map(String::as_str));
        let rest = self.held.split_off(self.held.len() - keep);
        StopOutput { text: std::mem::replace(&mut self.held, rest), stopped: None }
    }

    /// What is held back when no more text comes.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of `text` that are a proper beginning of one of `words`.
pub(super) fn longest_held<'a>(text: &str, words: impl Iterator<Item = &'a str>) -> usize {
    let mut longest = 0;
    for word in words {
        for (length, _) in word.char_indices().skip(1) {
            let start = &word[..length];
            if length > longest && text.ends_with(start) {
                longest = length;
            }
        }
    }
    longest
}
