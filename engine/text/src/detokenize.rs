//! Token ids to text as they come, without ever cutting a character.

use super::{TextError, Tokenizer};

/// Tokens that are decoded together where a token's text depends on its neighbours.
const WINDOW_MAX: usize = 64;

/// Turns token ids into text. A character whose bytes are spread over several tokens is held back
/// until it is whole; bytes that can never become a character come out as U+FFFD, one for each
/// ill-formed sequence, exactly as decoding everything at once would give them.
#[derive(Debug, Clone)]
pub struct DetokenizeStream {
    tokenizer: Tokenizer,
    keep_special: bool,
    /// Special tokens that are kept even so.
    kept: Vec<u32>,
    /// Vocabularies whose tokens have bytes of their own: the start of a character.
    pending: Vec<u8>,
    /// Others: tokens whose text is known to depend on each other, and how much of it is out.
    window: Vec<u32>,
    emitted: usize,
}

impl Tokenizer {
    /// A stream that turns token ids into text as they come, never cutting a character.
    pub fn decode_stream(&self, keep_special: bool) -> DetokenizeStream {
        DetokenizeStream::new(self.clone(), keep_special)
    }
}

impl DetokenizeStream {
    fn new(tokenizer: Tokenizer, keep_special: bool) -> Self {
        let kept = vec![];
        Self { tokenizer, keep_special, kept, pending: vec![], window: vec![], emitted: 0 }
    }

    /// Keeps the special tokens with which one of `texts` begins.
    #[must_use]
    pub fn keeping(mut self, texts: &[&str]) -> Self {
        let special = self.tokenizer.added_texts().filter(|(_, special)| *special);
        let begins = |token: &str| texts.iter().any(|text| text.starts_with(token));
        let kept = special.filter(|(token, _)| begins(token));
        self.kept = kept.filter_map(|(token, _)| self.tokenizer.token_to_id(token)).collect();
        self
    }

    /// Takes the next token; returns the text that is complete with it, often nothing.
    pub fn push(&mut self, id: u32) -> Result<String, TextError> {
        self.tokenizer.check_id(id)?;
        let is_kept = self.keep_special || self.kept.contains(&id);
        if !is_kept && self.tokenizer.is_special(id) {
            return Ok(String::new());
        }
        if !self.tokenizer.has_bytes() {
            return self.push_window(id);
        }
        // Default: an id between tokens has no bytes.
        self.pending.extend_from_slice(self.tokenizer.token_bytes(id).unwrap_or_default());
        Ok(take_complete(&mut self.pending))
    }

    /// What is held back when no more tokens come.
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

    /// Decodes a window of tokens again with each new one, since spaces and bytes depend on what
    /// stands before; the last token of the old window stays as context for the next.
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

/// Takes everything from `bytes` but the start of a character that may still be completed.
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

/// Whether `start` is a proper beginning of a UTF-8 character.
fn may_continue(start: &[u8]) -> bool {
    match std::str::from_utf8(start) {
        Ok(_) => false,
        // `None` means that the input ended too early, not that it was wrong.
        Err(error) => error.error_len().is_none(),
    }
}
