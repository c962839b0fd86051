//! Incremental decoding of token ids to text that never splits a character.

use super::{TextError, Tokenizer};

/// Maximum number of tokens decoded together where the text of a token depends on its neighbours.
const WINDOW_MAX: usize = 64;

/// Converts token ids to text. A character whose bytes span several tokens is held back until it is complete.
/// Bytes that cannot form a character become U+FFFD, one per ill-formed sequence, exactly as when all tokens
/// are decoded at once.
#[derive(Debug, Clone)]
pub struct DetokenizeStream {
    tokenizer: Tokenizer,
    keep_special: bool,
    /// Special tokens that are kept even if `keep_special` is false.
    kept: Vec<u32>,
    /// Start of an incomplete character, for vocabularies whose tokens map to bytes.
    pending: Vec<u8>,
    /// Tokens that are decoded together, for other vocabularies. `emitted` counts the bytes of their text
    /// that were returned.
    window: Vec<u32>,
    emitted: usize,
}

impl Tokenizer {
    /// Creates a stream that converts token ids to text and never splits a character.
    ///
    /// ```
    /// # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/demo_tokenizer.json");
    /// # let tokenizer = nestling_text::Tokenizer::from_bytes(file, &std::fs::read(file)?)?;
    /// let tokens = tokenizer.encode("hen 😀", Default::default())?;
    /// let mut stream = tokenizer.decode_stream(false);
    /// let mut text = String::new();
    /// for token in tokens {
    ///     text += &stream.push(token)?;
    /// }
    /// assert_eq!(text + &stream.finish()?, "hen 😀");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn decode_stream(&self, keep_special: bool) -> DetokenizeStream {
        DetokenizeStream::new(self.clone(), keep_special)
    }
}

impl DetokenizeStream {
    fn new(tokenizer: Tokenizer, keep_special: bool) -> Self {
        let kept = vec![];
        Self { tokenizer, keep_special, kept, pending: vec![], window: vec![], emitted: 0 }
    }

    /// Keeps the special tokens whose text is a prefix of one of `texts`.
    #[must_use]
    pub fn keeping(mut self, texts: &[&str]) -> Self {
        let special = self.tokenizer.added_texts().filter(|(_, special)| *special);
        let begins = |token: &str| texts.iter().any(|text| text.starts_with(token));
        let kept = special.filter(|(token, _)| begins(token));
        self.kept = kept.filter_map(|(token, _)| self.tokenizer.token_to_id(token)).collect();
        self
    }

    /// Consumes a token and returns the text that it completes, which is often empty.
    pub fn push(&mut self, id: u32) -> Result<String, TextError> {
        self.tokenizer.check_id(id)?;
        let is_kept = self.keep_special || self.kept.contains(&id);
        if !is_kept && self.tokenizer.is_special(id) {
            return Ok(String::new());
        }
        if !self.tokenizer.has_bytes() {
            return self.push_window(id);
        }
        // Default: an unassigned id has no bytes.
        self.pending.extend_from_slice(self.tokenizer.token_bytes(id).unwrap_or_default());
        Ok(take_complete(&mut self.pending))
    }

    /// Returns the held-back text at the end of the tokens.
    pub fn finish(&mut self) -> Result<String, TextError> {
        if !self.tokenizer.has_bytes() {
            let text = self.tokenizer.decode(&self.window, true)?;
            self.window.clear();
            // Default: a window whose text became shorter adds none.
            let rest = text.get(self.emitted..).unwrap_or_default().to_owned();
            self.emitted = 0;
            return Ok(rest);
        }
        let rest = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        Ok(rest)
    }

    /// Decodes the window again after each token, since spaces and bytes depend on the preceding tokens. The
    /// last token of a full window stays as context for the next one.
    fn push_window(&mut self, id: u32) -> Result<String, TextError> {
        self.window.push(id);
        let text = self.tokenizer.decode(&self.window, true)?;
        if text.ends_with('\u{fffd}') && self.window.len() < WINDOW_MAX {
            return Ok(String::new());
        }
        // Default: a window whose text became shorter adds none.
        let new = text.get(self.emitted..).unwrap_or_default().to_owned();
        self.emitted = text.len();
        if self.window.len() >= WINDOW_MAX / 2 {
            self.window = vec![id];
            self.emitted = self.tokenizer.decode(&self.window, true)?.len();
        }
        Ok(new)
    }
}

/// Removes and returns all complete text from `bytes`. The start of a character that may still be completed
/// stays.
fn take_complete(bytes: &mut Vec<u8>) -> String {
    let mut end = bytes.len();
    for chunk in bytes.utf8_chunks() {
        let tail = chunk.invalid();
        // An ill-formed sequence at the very end may be the start of a character.
        let is_last = tail.as_ptr_range().end == bytes.as_ptr_range().end;
        if !tail.is_empty() && is_last && may_continue(tail) {
            end -= tail.len();
        }
    }
    let rest = bytes.split_off(end);
    let complete = std::mem::replace(bytes, rest);
    String::from_utf8_lossy(&complete).into_owned()
}

/// Returns whether `start` is a proper prefix of a UTF-8 character.
fn may_continue(start: &[u8]) -> bool {
    match std::str::from_utf8(start) {
        Ok(_) => false,
        // `None` means that the input ended too early, not that it was wrong.
        Err(error) => error.error_len().is_none(),
    }
}
