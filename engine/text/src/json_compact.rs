//! JSON, printed again without white space while it comes.

use serde_json::Value;

/// Longest number or word.
const SCALAR_BYTES_MAX: usize = 1024;

/// How far a text has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// More of it has to come.
    More,
    /// It is complete.
    Complete,
    /// It is not what was expected.
    Broken,
}

/// What may come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    /// A comma, or the end.
    After,
    /// More of a text.
    Text {
        is_key: bool,
    },
}

/// Prints one JSON value as `serde_json` prints it, piece by piece.
#[derive(Debug, Clone)]
pub(super) struct JsonCompact {
    /// What closes the lists and objects that are open.
    open: Vec<u8>,
    next: Next,
}

impl JsonCompact {
    pub fn new() -> Self {
        Self { open: Vec::new(), next: Next::Value }
    }

    /// Reads on in `rest` from `at`, adds to `out` what is certain, and moves `at` behind it.
    pub fn read(&mut self, rest: &str, at: &mut usize, out: &mut String) -> Progress {
        loop {
            let found = match self.next {
                Next::Text { is_key } => self.read_text(rest, at, out, is_key),
                _ => self.read_token(rest, at, out),
            };
            if let Some(progress) = found {
                return progress;
            }
        }
    }

    fn read_token(&mut self, rest: &str, at: &mut usize, out: &mut String) -> Option<Progress> {
        let bytes = rest.as_bytes();
        while matches!(bytes.get(*at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            *at += 1;
        }
        let Some(byte) = bytes.get(*at).copied() else { return Some(Progress::More) };
        let is_value = matches!(self.next, Next::Value | Next::ValueOrEnd);
        let may_end = matches!(self.next, Next::ValueOrEnd | Next::KeyOrEnd | Next::After);
        self.next = match (self.next, byte) {
            (_, b'{') if is_value => {
                self.open.push(b'}');
                Next::KeyOrEnd
            }
            (_, b'[') if is_value => {
                self.open.push(b']');
                Next::ValueOrEnd
            }
            (_, b'}' | b']') if may_end && self.open.last() == Some(&byte) => {
                self.open.pop();
                Next::After
            }
            (Next::After, b',') => match self.open.last() {
                Some(b'}') => Next::Key,
                _ => Next::Value,
            },
            (Next::Colon, b':') => Next::Value,
            (Next::Key | Next::KeyOrEnd, b'"') => Next::Text { is_key: true },
            (_, b'"') if is_value => Next::Text { is_key: false },
            _ if is_value => return self.read_scalar(rest, at, out),
            _ => return Some(Progress::Broken),
        };
        out.push(char::from(byte));
        *at += 1;
        self.end_of_value()
    }

    fn end_of_value(&self) -> Option<Progress> {
        let is_whole = self.next == Next::After && self.open.is_empty();
        is_whole.then_some(Progress::Complete)
    }

    /// A number, or one of the words of JSON; where it ends shows only what follows.
    fn read_scalar(&mut self, rest: &str, at: &mut usize, out: &mut String) -> Option<Progress> {
        let scalar = &rest[*at..];
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let length = scalar.bytes().take_while(|byte| is_part(*byte)).count();
        if length > SCALAR_BYTES_MAX {
            return Some(Progress::Broken);
        }
        if length == scalar.len() {
            return Some(Progress::More);
        }
        let Ok(value) = serde_json::from_str::<Value>(&scalar[..length]) else {
            return Some(Progress::Broken);
        };
        out.push_str(&value.to_string());
        *at += length;
        self.next = Next::After;
        self.end_of_value()
    }

    fn read_text(
        &mut self,
        rest: &str,
        at: &mut usize,
        out: &mut String,
        is_key: bool,
    ) -> Option<Progress> {
        let text = &rest[*at..];
        let is_plain = |byte: u8| byte >= b' ' && byte != b'"' && byte != b'\\';
        let length = text.bytes().take_while(|byte| is_plain(*byte)).count();
        out.push_str(&text[..length]);
        *at += length;
        let text = &text[length..];
        match text.bytes().next() {
            None => Some(Progress::More),
            Some(b'"') => {
                out.push('"');
                *at += 1;
                self.next = if is_key { Next::Colon } else { Next::After };
                self.end_of_value()
            }
            Some(b'\\') => {
                let Some(length) = escape_bytes(text) else { return Some(Progress::More) };
                let Some(printed) = text.get(..length).and_then(unescaped) else {
                    return Some(Progress::Broken);
                };
                out.push_str(&printed);
                *at += length;
                None
            }
            Some(_) => Some(Progress::Broken),
        }
    }
}

/// Bytes of the escape at the beginning of `text`; none where it is not all there.
fn escape_bytes(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    if *bytes.get(1)? != b'u' {
        return Some(2);
    }
    let first = bytes.get(2..6)?;
    // The first half of a pair.
    let is_half = first[0].eq_ignore_ascii_case(&b'd') && b"89abAB".contains(&first[1]);
    let length = if is_half { 12 } else { 6 };
    (bytes.len() >= length).then_some(length)
}

/// An escape as `serde_json` prints the character.
fn unescaped(escape: &str) -> Option<String> {
    let text: String = serde_json::from_str(&format!("\"{escape}\"")).ok()?;
    let printed = serde_json::to_string(&text).ok()?;
    Some(printed.strip_prefix('"')?.strip_suffix('"')?.to_owned())
}
