//! Lexer of templates, with the white-space rules of jinja2 as configured by `transformers`: `trim_blocks`
//! and `lstrip_blocks`.

use std::borrow::Cow;

use super::limits::EXPRESSION_DEPTH_MAX;

/// A token. Text and data are borrowed from the template where possible.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token<'s> {
    Data(&'s str),
    VariableBegin,
    VariableEnd,
    BlockBegin,
    BlockEnd,
    Name(&'s str),
    Text(Cow<'s, str>),
    Int(i64),
    Float(f64),
    Symbol(&'static str),
    End,
}

/// Symbols; longer ones precede their prefixes.
const SYMBOLS: [&str; 26] = [
    "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "(", ")", "[", "]", "{", "}",
    "<", ">", "=", ".", ":", "|", ",", ";",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Data,
    Variable,
    Block,
}

#[derive(Debug)]
pub(crate) struct LexError(pub(crate) String);

fn error<T>(why: impl Into<String>) -> Result<T, LexError> {
    Err(LexError(why.into()))
}

/// Returns whether Python treats a character as white space.
pub(crate) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\x1c'..='\x1f').contains(&character)
}

pub(crate) struct Lexer<'s> {
    source: &'s str,
    at: usize,
    line: usize,
    mode: Mode,
    /// Set at the start and after a line break.
    at_line_start: bool,
    brackets: Vec<u8>,
    pending: Option<Token<'s>>,
}

impl<'s> Lexer<'s> {
    /// Creates a lexer for a template with `\n` line breaks.
    pub(crate) fn new(source: &'s str) -> Self {
        // jinja2 drops the line break at the end of a template.
        let source = source.strip_suffix('\n').unwrap_or(source);
        let (mode, pending) = (Mode::Data, None);
        Self { source, at: 0, line: 1, mode, at_line_start: true, brackets: vec![], pending }
    }

    pub(crate) fn line(&self) -> usize {
        self.line
    }

    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn advance(&mut self, bytes: usize) {
        let taken = self.rest().get(..bytes).unwrap_or(self.rest());
        self.line += taken.bytes().filter(|byte| *byte == b'\n').count();
        self.at_line_start = taken.ends_with('\n');
        self.at += taken.len();
    }

    pub(crate) fn next(&mut self) -> Result<Token<'s>, LexError> {
        if let Some(token) = self.pending.take() {
            return Ok(token);
        }
        match self.mode {
            Mode::Data => self.data(),
            Mode::Variable | Mode::Block => self.inside(),
        }
    }

    /// Returns the text up to the next tag, without comments.
    fn data(&mut self) -> Result<Token<'s>, LexError> {
        loop {
            let rest = self.rest();
            let Some((length, tag)) = find_tag(rest) else {
                self.advance(rest.len());
                return Ok(if rest.is_empty() { Token::End } else { Token::Data(rest) });
            };
            let sign = rest.as_bytes().get(length + 2).copied();
            let text = self.text_before(length, sign, tag != b'{');
            self.advance(length);
            let found = self.tag(tag, sign)?;
            match (text.is_empty(), found) {
                (true, None) => {}
                (true, Some(token)) => return Ok(token),
                (false, found) => {
                    self.pending = found;
                    return Ok(Token::Data(text));
                }
            }
        }
    }

    /// Returns the text before a tag, without the white space that the tag removes.
    fn text_before(&self, length: usize, sign: Option<u8>, is_block: bool) -> &'s str {
        let text = &self.rest()[..length];
        if sign == Some(b'-') {
            return text.trim_end_matches(is_space);
        }
        if sign != Some(b'+') && is_block {
            let line_start = text.rfind('\n').map_or(0, |at| at + 1);
            let (lines, line) = text.split_at(line_start);
            if line.chars().all(is_space) && (line_start > 0 || self.at_line_start) {
                return lines;
            }
        }
        text
    }

    /// Enters a tag or skips a comment.
    fn tag(&mut self, tag: u8, sign: Option<u8>) -> Result<Option<Token<'s>>, LexError> {
        let signed = matches!(sign, Some(b'-' | b'+'));
        match tag {
            b'#' => {
                let begin = 2 + usize::from(signed);
                let length = self.rest().get(begin..).and_then(|rest| rest.find("#}"));
                let Some(length) = length else { return error("a comment without its end") };
                self.advance(begin + length);
                // The sign of the end is the last character inside.
                let before = self.source.as_bytes().get(self.at - 1).copied();
                let sign = if length == 0 { None } else { before };
                self.advance(2);
                self.trim_after(sign);
                Ok(None)
            }
            b'%' => {
                if let Some(opened) = self.raw_begin(signed) {
                    self.advance(opened);
                    return self.raw().map(Some);
                }
                self.advance(2 + usize::from(signed));
                self.mode = Mode::Block;
                Ok(Some(Token::BlockBegin))
            }
            _ => {
                self.advance(2 + usize::from(signed));
                self.mode = Mode::Variable;
                Ok(Some(Token::VariableBegin))
            }
        }
    }

    /// Removes the white space after a block or comment according to its sign.
    fn trim_after(&mut self, sign: Option<u8>) {
        let rest = self.rest();
        let trimmed = match sign {
            Some(b'-') => rest.trim_start_matches(is_space),
            Some(b'+') => rest,
            _ => rest.strip_prefix('\n').unwrap_or(rest),
        };
        if trimmed.len() < rest.len() {
            self.advance(rest.len() - trimmed.len());
        }
    }

    /// Returns the length of `{% raw %}`, if it is next.
    fn raw_begin(&self, signed: bool) -> Option<usize> {
        let rest = self.rest();
        let inside = rest.get(2 + usize::from(signed)..)?.trim_start_matches(is_space);
        let after = inside.strip_prefix("raw")?.trim_start_matches(is_space);
        if let Some(after) = after.strip_prefix("-%}") {
            return Some(rest.len() - after.trim_start_matches(is_space).len());
        }
        Some(rest.len() - after.strip_prefix("%}")?.len())
    }

    /// Returns the text between `raw` and `endraw`.
    fn raw(&mut self) -> Result<Token<'s>, LexError> {
        let rest = self.rest();
        let mut from = 0;
        loop {
            let tag = rest.get(from..).and_then(|rest| rest.find("{%"));
            let Some(tag) = tag.map(|tag| from + tag) else {
                return error("`raw` without `endraw`");
            };
            let sign = rest.as_bytes().get(tag + 2).copied();
            let signed = usize::from(matches!(sign, Some(b'-' | b'+')));
            let inside = &rest[tag + 2 + signed..];
            if let Some((end_sign, after)) = raw_end(inside.trim_start_matches(is_space)) {
                let text = self.text_before(tag, sign, true);
                self.advance(rest.len() - after);
                self.trim_after(end_sign);
                return Ok(Token::Data(text));
            }
            from = tag + 2;
        }
    }

    fn inside(&mut self) -> Result<Token<'s>, LexError> {
        let rest = self.rest();
        let rest = rest.trim_start_matches(is_space);
        self.advance(self.rest().len() - rest.len());
        if self.brackets.is_empty()
            && let Some(end) = self.tag_end(rest)
        {
            return Ok(end);
        }
        let Some(first) = rest.chars().next() else {
            return if self.mode == Mode::Block {
                error("a block tag without its end, `%}`")
            } else {
                error("an expression without its end, `}}`")
            };
        };
        if first.is_ascii_digit() {
            return self.number(rest);
        }
        if first == '"' || first == '\'' {
            return self.text(rest, first);
        }
        if first == '_' || first.is_alphanumeric() {
            let length = rest.find(|c: char| c != '_' && !c.is_alphanumeric());
            let name = rest.get(..length.unwrap_or(rest.len())).unwrap_or(rest);
            self.advance(name.len());
            return Ok(Token::Name(name));
        }
        self.symbol(rest, first)
    }

    fn tag_end(&mut self, rest: &str) -> Option<Token<'s>> {
        let sign = rest.bytes().next().filter(|sign| matches!(sign, b'-' | b'+'));
        let length = 2 + usize::from(sign.is_some());
        let end = rest.get(length - 2..length)?;
        let token = match (self.mode, end, sign) {
            (Mode::Block, "%}", _) => Token::BlockEnd,
            (Mode::Variable, "}}", None | Some(b'-')) => Token::VariableEnd,
            _ => return None,
        };
        self.advance(length);
        if self.mode == Mode::Block || sign == Some(b'-') {
            self.trim_after(sign);
        }
        self.mode = Mode::Data;
        Some(token)
    }

    fn symbol(&mut self, rest: &str, first: char) -> Result<Token<'s>, LexError> {
        let Some(symbol) = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) else {
            return error(format!("unexpected character {first:?}"));
        };
        match *symbol {
            "(" => self.brackets.push(b')'),
            "[" => self.brackets.push(b']'),
            "{" => self.brackets.push(b'}'),
            ")" | "]" | "}" if self.brackets.pop() != symbol.bytes().next() => {
                return error(format!("unexpected `{symbol}`"));
            }
            _ => {}
        }
        if self.brackets.len() > EXPRESSION_DEPTH_MAX {
            return error("brackets are nested too deeply");
        }
        self.advance(symbol.len());
        Ok(Token::Symbol(symbol))
    }

    fn number(&mut self, rest: &str) -> Result<Token<'s>, LexError> {
        let digits = |text: &str| {
            let end = text.find(|c: char| !c.is_ascii_digit() && c != '_');
            end.unwrap_or(text.len())
        };
        for (prefix, radix) in [("0b", 2), ("0o", 8), ("0x", 16)] {
            let start = rest.get(..2).unwrap_or(rest);
            if start.eq_ignore_ascii_case(prefix) {
                let end = rest.find(|c: char| c != '_' && !c.is_ascii_alphanumeric());
                let number = rest.get(..end.unwrap_or(rest.len())).unwrap_or(rest);
                self.advance(number.len());
                let digits = number[2..].replace('_', "");
                return match i64::from_str_radix(&digits, radix) {
                    Ok(number) => Ok(Token::Int(number)),
                    Err(_) => error(format!("not an integer: {number}")),
                };
            }
        }
        let whole = digits(rest);
        let mut length = whole;
        let after = |at: usize| rest.get(at..).unwrap_or_default(); // Default: past the end is empty.
        let is_digit = |at: usize| after(at).starts_with(|c: char| c.is_ascii_digit());
        if after(length).starts_with('.') && is_digit(length + 1) {
            length += 1 + digits(after(length + 1));
        }
        if after(length).starts_with(['e', 'E']) {
            let signed = usize::from(after(length + 1).starts_with(['+', '-']));
            if is_digit(length + 1 + signed) {
                length += 1 + signed + digits(after(length + 1 + signed));
            }
        }
        let number = rest.get(..length).unwrap_or(rest);
        self.advance(length);
        let plain = number.replace('_', "");
        if length > whole {
            return plain.parse().map(Token::Float).or(error(format!("not a number: {number}")));
        }
        plain.parse().map(Token::Int).or(error(format!("an integer beyond 64 bits: {number}")))
    }

    fn text(&mut self, rest: &'s str, quote: char) -> Result<Token<'s>, LexError> {
        let mut escaped = false;
        let mut has_escapes = false;
        for (at, character) in rest.char_indices().skip(1) {
            if escaped {
                escaped = false;
            } else if character == '\\' {
                (escaped, has_escapes) = (true, true);
            } else if character == quote {
                let inside = rest.get(1..at).unwrap_or(rest);
                self.advance(at + 1);
                let text = if has_escapes { unescape(inside)?.into() } else { inside.into() };
                return Ok(Token::Text(text));
            }
        }
        error("a text without its closing quote")
    }
}

/// Returns the byte offset of the next tag and its second character.
fn find_tag(text: &str) -> Option<(usize, u8)> {
    let bytes = text.as_bytes();
    let mut from = 0;
    loop {
        let at = from + text.get(from..)?.find('{')?;
        match bytes.get(at + 1) {
            Some(tag @ (b'{' | b'%' | b'#')) => return Some((at, *tag)),
            _ => from = at + 1,
        }
    }
}

/// Parses `endraw %}` after `{%`. Returns the sign at its end and the number of bytes after it.
fn raw_end(inside: &str) -> Option<(Option<u8>, usize)> {
    let after = inside.strip_prefix("endraw")?.trim_start_matches(is_space);
    let sign = after.bytes().next().filter(|sign| matches!(sign, b'-' | b'+'));
    let after = after.get(usize::from(sign.is_some())..)?.strip_prefix("%}")?;
    Some((sign, after.len()))
}

/// Resolves the escapes of a text as in Python.
fn unescape(text: &str) -> Result<String, LexError> {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            out.push(character);
            continue;
        }
        let Some(escape) = characters.next() else { return error("a lone backslash") };
        let digits = match escape {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            '0'..='7' => {
                let rest = characters.as_str();
                let more = rest.bytes().take(2).take_while(|b| matches!(b, b'0'..=b'7')).count();
                let mut code = escape as u32 - '0' as u32;
                for _ in 0..more {
                    code = code * 8 + characters.next().map_or(0, |c| c as u32 - '0' as u32);
                }
                out.extend(char::from_u32(code));
                continue;
            }
            _ => {
                push_simple_escape(&mut out, escape)?;
                continue;
            }
        };
        let code = characters.as_str().get(..digits).filter(|code| !code.contains('+'));
        let code = code.and_then(|code| u32::from_str_radix(code, 16).ok());
        let Some(character) = code.and_then(char::from_u32) else {
            return error(format!("\\{escape} wants {digits} digits of a character"));
        };
        out.push(character);
        characters = characters.as_str()[digits..].chars();
    }
    Ok(out)
}

fn push_simple_escape(out: &mut String, escape: char) -> Result<(), LexError> {
    match escape {
        'n' => out.push('\n'),
        't' => out.push('\t'),
        'r' => out.push('\r'),
        'a' => out.push('\x07'),
        'b' => out.push('\x08'),
        'f' => out.push('\x0c'),
        'v' => out.push('\x0b'),
        '\n' => {}
        '\\' | '\'' | '"' => out.push(escape),
        'N' => return error("\\N is not supported"),
        // An unknown escape stays unchanged, as in Python.
        other => out.extend(['\\', other]),
    }
    Ok(())
}
