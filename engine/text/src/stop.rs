//! Stop strings, matched across token boundaries.

use super::TextError;

/// Maximum number of stop strings, and maximum length of one in bytes.
const STOPS_MAX: usize = 64;
const STOP_BYTES_MAX: usize = 4096;

/// Result of matching a chunk of text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopOutput {
    /// Text that can be shown: no stop string can start in it.
    pub text: String,
    /// Index of the stop string that was found. The stop string is not part of the text.
    pub stopped: Option<usize>,
}

/// Searches a stream of text for stop strings. Text that may be the start of one is held back.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

impl StopMatcher {
    /// Creates a matcher for `stops`, which may be empty.
    ///
    /// ```
    /// use nestling_text::StopMatcher;
    ///
    /// let mut matcher = StopMatcher::new(vec!["END".into()])?;
    /// assert_eq!(matcher.push("text E").text, "text ");
    /// let found = matcher.push("ND more");
    /// assert_eq!((found.text.as_str(), found.stopped), ("", Some(0)));
    /// # Ok::<(), nestling_text::TextError>(())
    /// ```
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

    /// Consumes a chunk of text. After a stop, the caller must discard further text.
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

    /// Returns the held-back text at the end of the stream.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Returns the length in bytes of the longest suffix of `text` that is a proper prefix of one of `words`.
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
