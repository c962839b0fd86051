//! Where the arguments of a tool call begin, found as the call comes.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::call_form::{
    Call, CallForm, DEEPSEEK_SEPARATOR, KIMI_SEPARATOR, SOLAR_ARGUMENTS, SOLAR_NAME, function_name,
    is_glm_name, json, json_list, kimi_name,
};

/// What stands before the arguments of a call. What a beginning of a text shows stays so, whatever follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Head {
    /// The arguments of a call of `name` begin behind `at` bytes.
    Call { name: String, at: usize },
    /// No further call comes.
    End { at: usize },
}

/// Why there is no head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoHead {
    /// More text may bring it.
    More,
    /// Only the whole text shows what it is.
    Never,
}

type Found<T> = Result<T, NoHead>;

impl CallForm {
    /// The head of the first call of `text`, or of one that follows another's arguments.
    pub(super) fn head(self, text: &str, is_first: bool) -> Found<Head> {
        let mut cursor = Cursor { text, at: 0 };
        match self {
            Self::JsonList => cursor.list_head(is_first),
            Self::Invoke => cursor.named_head("<invoke name="),
            // The other forms have one call.
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

    /// The calls of a text that is all there, if nothing else stands in it: of one whose beginning does not show where
    /// its arguments begin. It follows the arguments of another call unless it `is_first`.
    pub(super) fn parse_late(self, text: &str, is_first: bool) -> Option<Vec<Call>> {
        match self {
            Self::JsonList if is_first => json_list(text),
            Self::JsonList => json_list(&format!("[{}", behind_call(text)?)),
            Self::Json if is_first => Some(vec![json(serde_json::from_str(text.trim()).ok()?)?]),
            // A name alone is a call without arguments.
            Self::ArgumentTags if is_first && is_glm_name(text.trim()) => {
                Some(vec![(text.trim().into(), Value::Object(Map::new()))])
            }
            _ => None,
        }
    }
}

/// What follows in a list of calls the one whose arguments `text` follows.
fn behind_call(text: &str) -> Option<&str> {
    let mut cursor = Cursor { text, at: 0 };
    cursor.end_of_object().and_then(|()| cursor.take(b',')).ok()?;
    Some(cursor.rest())
}

fn named(name: &str, at: usize) -> Found<Head> {
    let name = name.trim();
    if name.is_empty() { Err(NoHead::Never) } else { Ok(Head::Call { name: name.into(), at }) }
}

/// A text, and how far it is read.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// The next byte behind white space.
    fn peek(&mut self) -> Found<u8> {
        self.at = self.text.len() - self.rest().trim_start().len();
        self.rest().bytes().next().ok_or(NoHead::More)
    }

    fn take(&mut self, wanted: u8) -> Found<()> {
        let is_wanted = self.peek()? == wanted;
        self.at += usize::from(is_wanted);
        if is_wanted { Ok(()) } else { Err(NoHead::Never) }
    }

    /// Takes `tag`, with white space before it.
    fn prefix(&mut self, tag: &str) -> Found<()> {
        self.peek()?;
        if self.rest().starts_with(tag) {
            self.at += tag.len();
            return Ok(());
        }
        Err(if tag.starts_with(self.rest()) { NoHead::More } else { NoHead::Never })
    }

    /// Takes what stands before `mark`, and it.
    fn until(&mut self, mark: &str) -> Found<&'a str> {
        let (before, _) = self.rest().split_once(mark).ok_or(NoHead::More)?;
        self.at += before.len() + mark.len();
        Ok(before)
    }

    /// An object of arguments begins here.
    fn object(&mut self, name: &str) -> Found<Head> {
        if self.peek()? == b'{' { named(name, self.at) } else { Err(NoHead::Never) }
    }

    fn named_head(&mut self, tag: &str) -> Found<Head> {
        self.prefix(tag)?;
        let name = self.until(">")?;
        named(if tag == "<function=" { name } else { function_name(name) }, self.at)
    }

    fn deepseek_head(&mut self) -> Found<Head> {
        let before = self.until(DEEPSEEK_SEPARATOR)?;
        if self.peek()? == b'{' {
            return named(before, self.at);
        }
        let name = self.until("```json")?;
        self.object(name)
    }

    /// `[{...}, {...}]`, from the beginning or from behind the arguments of a call.
    fn list_head(&mut self, is_first: bool) -> Found<Head> {
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

    /// The members of an object that follow the arguments, and its end.
    fn end_of_object(&mut self) -> Found<()> {
        while self.peek()? == b',' {
            self.at += 1;
            self.value::<String>()?;
            self.take(b':')?;
            self.value::<IgnoredAny>()?;
        }
        self.take(b'}')
    }

    /// `{"name": NAME, "arguments": {`, with other members before or between.
    fn json_head(&mut self) -> Found<Head> {
        self.take(b'{')?;
        let mut name = None;
        loop {
            let key: String = self.value()?;
            self.take(b':')?;
            match (key.as_str(), &name) {
                ("name", _) => name = Some(self.value::<String>()?),
                ("arguments", Some(name)) => return self.object_of_any(name),
                // The arguments, where none of that name follow.
                ("arguments" | "parameters", _) => return Err(NoHead::Never),
                _ => {
                    self.value::<IgnoredAny>()?;
                }
            }
            self.take(b',')?;
        }
    }

    /// Names of this form are not trimmed.
    fn object_of_any(&mut self, name: &str) -> Found<Head> {
        let is_object = self.peek()? == b'{';
        let head = Head::Call { name: name.into(), at: self.at };
        if is_object { Ok(head) } else { Err(NoHead::Never) }
    }

    /// Takes a whole value, behind which something stands: a number might go on.
    fn value<T: for<'de> Deserialize<'de>>(&mut self) -> Found<T> {
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
