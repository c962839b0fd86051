//! How models write tool calls between their tags.

use serde_json::{Map, Value};

use super::messages::ToolCall;

/// What stands between the tags of a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallForm {
    /// A JSON object with `name` and `arguments`, as Qwen3 and Hermes write.
    #[default]
    Json,
    /// The name, then `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>` for every argument, as
    /// GLM writes. A value is JSON, or else text.
    ArgumentTags,
    /// `<function=NAME>`, then `<parameter=KEY>`, the value and `</parameter>` for every argument,
    /// `</function>`, as Qwen3-Coder and Qwen3.5 write. A value is JSON, or else text; the line
    /// breaks around it belong to the form.
    FunctionTags,
    /// `function<｜tool▁sep｜>NAME` and the arguments as a JSON block, as DeepSeek-V2.5 writes, or
    /// `NAME<｜tool▁sep｜>JSON`, as later ones do.
    DeepSeek,
    /// `call:NAME{KEY:VALUE,...}`, as Gemma 4 writes: keys without quotes, text between `<|"|>`, all
    /// else as in JSON.
    Gemma,
}

/// The tags around one call, and around all calls of an answer, of DeepSeek's models.
pub(super) const DEEPSEEK_CALL: (&str, &str) = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>");
pub(super) const DEEPSEEK_CALLS: (&str, &str) = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>");
const DEEPSEEK_SEPARATOR: &str = "<｜tool▁sep｜>";

/// What stands around text in Gemma's calls.
pub(super) const GEMMA_QUOTE: &str = "<|\"|>";

/// Deepest nesting of a value.
const DEPTH_MAX: usize = 64;

impl CallForm {
    /// The form that a template's source shows.
    pub fn detect(template: &str) -> Self {
        match template {
            _ if template.contains("<arg_key>") => Self::ArgumentTags,
            _ if template.contains("<function=") => Self::FunctionTags,
            _ if template.contains(DEEPSEEK_CALL.0) => Self::DeepSeek,
            _ if template.contains("<|tool_call>call:") => Self::Gemma,
            _ => Self::Json,
        }
    }

    /// The call that stands between the tags, if there is one; `number` makes its id.
    pub fn parse(self, text: &str, number: usize) -> Option<ToolCall> {
        let (name, arguments) = match self {
            Self::Json => json(text)?,
            Self::ArgumentTags => argument_tags(text)?,
            Self::FunctionTags => function_tags(text.trim())?,
            Self::DeepSeek => deepseek(text)?,
            Self::Gemma => gemma(text.trim())?,
        };
        Some(ToolCall { id: ToolCall::numbered_id(number), name, arguments })
    }
}

/// `{"name": ..., "arguments": {...}}`.
fn json(text: &str) -> Option<(String, Value)> {
    let Value::Object(mut map) = serde_json::from_str(text.trim()).ok()? else { return None };
    let Some(Value::String(name)) = map.remove("name") else { return None };
    let arguments = map.remove("arguments").or_else(|| map.remove("parameters"));
    Some((name, arguments.unwrap_or_else(|| Value::Object(Map::new()))))
}

fn argument_tags(text: &str) -> Option<(String, Value)> {
    let (name, mut rest) = text.split_at(text.find("<arg_key>").unwrap_or(text.len()));
    let name = name.trim();
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '<') {
        return None;
    }
    let mut arguments = Map::new();
    while !rest.trim().is_empty() {
        let (key, after) = rest.trim_start().strip_prefix("<arg_key>")?.split_once("</arg_key>")?;
        let value = after.trim_start().strip_prefix("<arg_value>")?;
        let (value, after) = value.split_once("</arg_value>")?;
        let parsed = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        arguments.insert(key.trim().into(), parsed);
        rest = after;
    }
    Some((name.into(), Value::Object(arguments)))
}

fn function_tags(text: &str) -> Option<(String, Value)> {
    let inside = text.strip_prefix("<function=")?.strip_suffix("</function>")?;
    let (name, mut rest) = inside.split_once('>')?;
    let mut arguments = Map::new();
    while !rest.trim().is_empty() {
        let (key, after) = rest.trim_start().strip_prefix("<parameter=")?.split_once('>')?;
        let (value, after) = after.split_once("</parameter>")?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        arguments.insert(key.into(), untyped(value));
        rest = after;
    }
    (!name.is_empty()).then(|| (name.into(), Value::Object(arguments)))
}

/// A value whose type is not written: JSON, Python's words for its constants, or else text.
fn untyped(text: &str) -> Value {
    match text {
        "True" => Value::Bool(true),
        "False" => Value::Bool(false),
        "None" => Value::Null,
        _ => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
    }
}

fn deepseek(text: &str) -> Option<(String, Value)> {
    let (before, after) = text.split_once(DEEPSEEK_SEPARATOR)?;
    let (name, arguments) = match after.split_once("```json") {
        Some((name, block)) => (name, block.trim().strip_suffix("```")?),
        None => (before, after),
    };
    let arguments = serde_json::from_str(arguments.trim()).ok().filter(Value::is_object)?;
    let name = name.trim();
    (!name.is_empty()).then(|| (name.into(), arguments))
}

fn gemma(text: &str) -> Option<(String, Value)> {
    let (name, _) = text.strip_prefix("call:")?.split_once('{')?;
    let mut rest = text.get("call:".len() + name.len()..)?;
    let arguments = gemma_value(&mut rest, DEPTH_MAX)?;
    let name = name.trim();
    let is_whole = rest.trim().is_empty() && !name.is_empty();
    is_whole.then(|| (name.into(), arguments))
}

/// Takes a value from the beginning of `rest`.
fn gemma_value(rest: &mut &str, depth: usize) -> Option<Value> {
    let depth = depth.checked_sub(1)?;
    if take(rest, "{") {
        let mut map = Map::new();
        gemma_items(rest, "}", |rest| {
            let key = gemma_word(rest, &[':'])?;
            if !take(rest, ":") {
                return None;
            }
            map.insert(key.text, gemma_value(rest, depth)?);
            Some(())
        })?;
        return Some(Value::Object(map));
    }
    if take(rest, "[") {
        let mut items = Vec::new();
        gemma_items(rest, "]", |rest| {
            items.push(gemma_value(rest, depth)?);
            Some(())
        })?;
        return Some(Value::Array(items));
    }
    let word = gemma_word(rest, &[',', '}', ']'])?;
    Some(if word.is_quoted { word.text.into() } else { untyped(&word.text) })
}

/// A key, or a value that is neither list nor object.
struct Word {
    text: String,
    is_quoted: bool,
}

/// Takes items with commas between them, and `close`.
fn gemma_items(
    rest: &mut &str,
    close: &str,
    mut item: impl FnMut(&mut &str) -> Option<()>,
) -> Option<()> {
    if take(rest, close) {
        return Some(());
    }
    loop {
        item(rest)?;
        if take(rest, close) {
            return Some(());
        }
        if !take(rest, ",") {
            return None;
        }
    }
}

/// Takes text in Gemma's quotes, where nothing is escaped, or in JSON's, or else up to one of
/// `ends`, which has to come.
fn gemma_word(rest: &mut &str, ends: &[char]) -> Option<Word> {
    if take(rest, GEMMA_QUOTE) {
        let (text, after) = rest.split_once(GEMMA_QUOTE)?;
        *rest = after;
        return Some(Word { text: text.into(), is_quoted: true });
    }
    if rest.trim_start().starts_with('"') {
        let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<String>();
        let text = stream.next()?.ok()?;
        *rest = rest.get(stream.byte_offset()..)?;
        return Some(Word { text, is_quoted: true });
    }
    let (word, after) = rest.split_at(rest.find(ends)?);
    *rest = after;
    let text = word.trim().to_owned();
    (!text.is_empty()).then_some(Word { text, is_quoted: false })
}

/// Takes `mark` from the beginning, with white space before it.
fn take(rest: &mut &str, mark: &str) -> bool {
    let after = rest.trim_start().strip_prefix(mark);
    *rest = after.unwrap_or(rest);
    after.is_some()
}
