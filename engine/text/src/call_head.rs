//! Detection of the start of a tool call's arguments in text that is still arriving.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::call_form::{
    Call, CallForm, DEEPSEEK_SEPARATOR, KIMI_SEPARATOR, SOLAR_ARGUMENTS, SOLAR_NAME, function_name,
    is_glm_name, json, json_list, kimi_name,
};
use super::python_calls::python_calls;

/// Text before the arguments of a call. A head found in a prefix of the text stays valid when more text
/// follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Head {
    /// A call of `name` whose arguments start at byte `at`.
    Call { name: String, at: usize },
    /// The end of the calls.
    End { at: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoHead {
    More,
    /// The syntax can only be decided from the whole text.
    Never,
}

type HeadResult<T> = Result<T, NoHead>;

impl CallForm {
    /// Finds the head of the first call of `text`, or the head after another call's arguments.
    pub(super) fn head(self, text: &str, is_first: bool) -> HeadResult<Head> {
        let mut cursor = Cursor { text, at: 0 };
        match self {
            Self::JsonList => cursor.list_head(is_first),
            Self::Invoke => cursor.named_head("<invoke name="),
            Self::Python => Err(NoHead::Never),
            // The other forms hold a single call.
            _ if !is_first => Ok(Head::End { at: 0 }),
            Self::Json => cursor.json_head(),
            Self::FunctionTags => cursor.named_head("<function="),
            Self::ArgumentTags => {
                let at = text.find("<arg_key>").ok_or(NoHead::More)?;
                let name = text[..at].trim();
                named(if is_glm_name(name) { name } else { "" }, at)
            }
            Self::DeepSeek => cursor.deepseek_head(),
            Self::Kimi => {
                let name = kimi_name(cursor.until(KIMI_SEPARATOR)?).ok_or(NoHead::Never)?;
                cursor.object(name)
            }
            Self::Solar => {
                cursor.until(SOLAR_NAME)?;
                let name = cursor.until(SOLAR_ARGUMENTS)?;
                cursor.object(name)
            }
            Self::Gemma => {
                cursor.prefix("call:")?;
                let name = cursor.until("{")?;
                named(name, cursor.at - 1)
            }
        }
    }

    /// Parses the calls of a complete text whose start does not show where the arguments begin. Returns
    /// `None` if the text contains anything else. Unless `is_first`, the text follows the arguments of
    /// another call.
    pub(super) fn parse_late(self, text: &str, is_first: bool) -> Option<Vec<Call>> {
        match self {
            Self::JsonList if is_first => json_list(text),
            Self::Python if is_first => python_calls(text).or_else(|| json_list(text)),
            Self::JsonList => json_list(&format!("[{}", behind_call(text)?)),
            Self::Json if is_first => Some(vec![json(serde_json::from_str(text.trim()).ok()?)?]),
            // A bare name is a call without arguments.
            Self::ArgumentTags if is_first && is_glm_name(text.trim()) => {
                Some(vec![(text.trim().into(), Value::Object(Map::new()))])
            }
            _ => None,
        }
    }
}

/// Returns the rest of a list of calls after the call whose arguments precede `text`.
fn behind_call(text: &str) -> Option<&str> {
    let mut cursor = Cursor { text, at: 0 };
    cursor.end_of_object().and_then(|()| cursor.take(b',')).ok()?;
    Some(cursor.rest())
}

fn named(name: &str, at: usize) -> HeadResult<Head> {
    let name = name.trim();
    if name.is_empty() { Err(NoHead::Never) } else { Ok(Head::Call { name: name.into(), at }) }
}

struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Skips white space and returns the next byte.
    fn peek(&mut self) -> HeadResult<u8> {
        self.at = self.text.len() - self.rest().trim_start().len();
        self.rest().bytes().next().ok_or(NoHead::More)
    }

    fn take(&mut self, wanted: u8) -> HeadResult<()> {
        let is_wanted = self.peek()? == wanted;
        self.at += usize::from(is_wanted);
        if is_wanted { Ok(()) } else { Err(NoHead::Never) }
    }

    /// Consumes `tag` and the white space before it.
    fn prefix(&mut self, tag: &str) -> HeadResult<()> {
        self.peek()?;
        if self.rest().starts_with(tag) {
            self.at += tag.len();
            return Ok(());
        }
        Err(if tag.starts_with(self.rest()) { NoHead::More } else { NoHead::Never })
    }

    /// Consumes the text up to and including `mark`, and returns the text before it.
    fn until(&mut self, mark: &str) -> HeadResult<&'a str> {
        let (before, _) = self.rest().split_once(mark).ok_or(NoHead::More)?;
        self.at += before.len() + mark.len();
        Ok(before)
    }

    /// Returns the head of a call whose arguments are an object that starts here.
    fn object(&mut self, name: &str) -> HeadResult<Head> {
        if self.peek()? == b'{' { named(name, self.at) } else { Err(NoHead::Never) }
    }

    fn named_head(&mut self, tag: &str) -> HeadResult<Head> {
        self.prefix(tag)?;
        let name = self.until(">")?;
        named(if tag == "<function=" { name } else { function_name(name) }, self.at)
    }

    fn deepseek_head(&mut self) -> HeadResult<Head> {
        let before = self.until(DEEPSEEK_SEPARATOR)?;
        if self.peek()? == b'{' {
            return named(before, self.at);
        }
        let name = self.until("```json")?;
        self.object(name)
    }

    /// Reads the head of a call in `[{...}, {...}]`, at the start of the list or after the arguments of a
    /// call.
    fn list_head(&mut self, is_first: bool) -> HeadResult<Head> {
        if is_first {
            self.take(b'[')?;
            return self.json_head();
        }
        self.end_of_object()?;
        if self.peek()? == b']' {
            return Ok(Head::End { at: self.at + 1 });
        }
        self.take(b',')?;
        self.json_head()
    }

    /// Consumes the object members after the arguments, and the closing brace.
    fn end_of_object(&mut self) -> HeadResult<()> {
        while self.peek()? == b',' {
            self.at += 1;
            self.value::<String>()?;
            self.take(b':')?;
            self.value::<IgnoredAny>()?;
        }
        self.take(b'}')
    }

    /// Reads `{"name": NAME, "arguments": {`, with other members before or between.
    fn json_head(&mut self) -> HeadResult<Head> {
        self.take(b'{')?;
        let mut name = None;
        loop {
            let key: String = self.value()?;
            self.take(b':')?;
            match (key.as_str(), &name) {
                ("name", _) => name = Some(self.value::<String>()?),
                ("arguments", Some(name)) => return self.object_of_any(name),
                // The arguments precede the name, or are not an object.
                ("arguments" | "parameters", _) => return Err(NoHead::Never),
                _ => {
                    self.value::<IgnoredAny>()?;
                }
            }
            self.take(b',')?;
        }
    }

    /// Returns the head of a call whose name must not be trimmed.
    fn object_of_any(&mut self, name: &str) -> HeadResult<Head> {
        let is_object = self.peek()? == b'{';
        let head = Head::Call { name: name.into(), at: self.at };
        if is_object { Ok(head) } else { Err(NoHead::Never) }
    }

    /// Consumes a complete JSON value. Text must follow it, since a number at the end may continue.
    fn value<T: for<'de> Deserialize<'de>>(&mut self) -> HeadResult<T> {
        self.peek()?;
        let mut stream = serde_json::Deserializer::from_str(self.rest()).into_iter::<T>();
        let value = match stream.next() {
            Some(Ok(value)) => value,
            Some(Err(error)) if !error.is_eof() => return Err(NoHead::Never),
            _ => return Err(NoHead::More),
        };
        self.at += stream.byte_offset();
        self.peek()?;
        Ok(value)
    }
}
