//! Incremental reprinting of JSON without white space.

use std::collections::BTreeSet;

use serde_json::Value;

/// Maximum length in bytes of a number or literal.
const SCALAR_BYTES_MAX: usize = 1024;

/// Result of reading a text that is still arriving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    More,
    Complete,
    /// The text is not valid JSON.
    Broken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    /// A comma, or the closing bracket.
    After,
    /// The rest of a string.
    Text {
        is_key: bool,
    },
}

#[derive(Debug, Clone)]
struct Open {
    close: u8,
    /// Names of its members so far, as printed.
    names: BTreeSet<String>,
}

/// Reprints one JSON value incrementally, formatted as by `serde_json`. The first of two members of the same
/// name wins, since it is already printed when the second arrives.
#[derive(Debug, Clone)]
pub(super) struct JsonCompact {
    open: Vec<Open>,
    next: Next,
    /// Name of the current member so far, with the opening quote.
    name: String,
    /// Start of a member that is not printed yet, including the comma before it.
    unprinted: Option<usize>,
    /// Nesting depth at which a member that is skipped begins.
    silent: Option<usize>,
}

impl JsonCompact {
    pub fn new() -> Self {
        Self {
            open: Vec::new(),
            next: Next::Value,
            name: String::new(),
            unprinted: None,
            silent: None,
        }
    }

    /// Reads `rest` from `at`, appends to `out` all output that is certain, and advances `at`.
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

    /// Returns the position up to which the input was printed.
    pub fn printed(&self, at: usize) -> usize {
        self.unprinted.unwrap_or(at)
    }

    fn print(&mut self, text: &str, out: &mut String) {
        match (self.next, self.silent) {
            (Next::Text { is_key: true }, _) => self.name.push_str(text),
            (_, None) => out.push_str(text),
            _ => {}
        }
    }

    /// Ends a member name and decides whether the member is printed.
    fn end_of_name(&mut self, out: &mut String) {
        let name = std::mem::take(&mut self.name) + "\"";
        self.next = Next::Colon;
        // Default: skipped members need no name.
        let Some(open) = self.open.last_mut().filter(|_| self.silent.is_none()) else { return };
        if open.names.contains(&name) {
            self.silent = Some(self.open.len());
            return;
        }
        let comma = if open.names.is_empty() { "" } else { "," };
        *out += comma;
        *out += &name;
        open.names.insert(name);
        self.unprinted = None;
    }

    fn read_token(&mut self, rest: &str, at: &mut usize, out: &mut String) -> Option<Progress> {
        let bytes = rest.as_bytes();
        while matches!(bytes.get(*at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            *at += 1;
        }
        let Some(byte) = bytes.get(*at).copied() else { return Some(Progress::More) };
        let is_value = matches!(self.next, Next::Value | Next::ValueOrEnd);
        let may_end = matches!(self.next, Next::ValueOrEnd | Next::KeyOrEnd | Next::After);
        let in_object = self.open.last().is_some_and(|open| open.close == b'}');
        let closes = self.open.last().is_some_and(|open| open.close == byte);
        let next = match (self.next, byte) {
            (_, b'{') if is_value => Next::KeyOrEnd,
            (_, b'[') if is_value => Next::ValueOrEnd,
            (_, b'}' | b']') if may_end && closes => Next::After,
            (Next::After, b',') if in_object => Next::Key,
            (Next::After, b',') => Next::Value,
            (Next::Colon, b':') => Next::Value,
            (Next::Key | Next::KeyOrEnd, b'"') => Next::Text { is_key: true },
            (_, b'"') if is_value => Next::Text { is_key: false },
            _ if is_value => return self.read_scalar(rest, at, out),
            _ => return Some(Progress::Broken),
        };
        if matches!(next, Next::Key | Next::Text { is_key: true }) {
            // The comma is printed together with the name.
            self.unprinted.get_or_insert(*at);
        }
        self.next = next;
        match byte {
            b'{' | b'[' => {
                let close = if byte == b'{' { b'}' } else { b']' };
                self.print(char::from(byte).encode_utf8(&mut [0; 4]), out);
                self.open.push(Open { close, names: BTreeSet::new() });
            }
            b',' if in_object => {}
            _ => self.print(char::from(byte).encode_utf8(&mut [0; 4]), out),
        }
        *at += 1;
        if next == Next::After {
            self.open.pop();
        }
        self.end_of_value()
    }

    fn end_of_value(&mut self) -> Option<Progress> {
        if self.next == Next::After && self.silent == Some(self.open.len()) {
            (self.silent, self.unprinted) = (None, None);
        }
        let is_whole = self.next == Next::After && self.open.is_empty();
        is_whole.then_some(Progress::Complete)
    }

    /// Reads a number or literal. Its end is known only when another byte follows.
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
        self.print(&value.to_string(), out);
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
        self.print(&text[..length], out);
        *at += length;
        let text = &text[length..];
        match text.bytes().next() {
            None => Some(Progress::More),
            Some(b'"') => {
                *at += 1;
                if is_key {
                    self.end_of_name(out);
                    return None;
                }
                self.print("\"", out);
                self.next = Next::After;
                self.end_of_value()
            }
            Some(b'\\') => {
                let Some(length) = escape_bytes(text) else { return Some(Progress::More) };
                let Some(printed) = text.get(..length).and_then(unescaped) else {
                    return Some(Progress::Broken);
                };
                self.print(&printed, out);
                *at += length;
                None
            }
            Some(_) => Some(Progress::Broken),
        }
    }
}

/// Returns the length in bytes of the escape at the start of `text`, or `None` if it is incomplete.
fn escape_bytes(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    if *bytes.get(1)? != b'u' {
        return Some(2);
    }
    let first = bytes.get(2..6)?;
    // A high surrogate: the second half of the pair follows.
    let is_half = first[0].eq_ignore_ascii_case(&b'd') && b"89abAB".contains(&first[1]);
    let length = if is_half { 12 } else { 6 };
    (bytes.len() >= length).then_some(length)
}

/// Decodes an escape and prints the character as `serde_json` does.
fn unescaped(escape: &str) -> Option<String> {
    let text: String = serde_json::from_str(&format!("\"{escape}\"")).ok()?;
    let printed = serde_json::to_string(&text).ok()?;
    Some(printed.strip_prefix('"')?.strip_suffix('"')?.to_owned())
}
