//! How models write tool calls between their tags.

use serde_json::{Map, Value};

use super::argument_types::{ArgumentTypes, untyped};
use super::messages::ToolCall;

/// What stands between the tags of a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CallForm {
    /// A JSON object with `name` and `arguments`, as Qwen3 and Hermes write.
    #[default]
    Json,
    /// A JSON list of such objects, as Hunyuan writes.
    JsonList,
    /// The name, then `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>` for every argument, as
    /// GLM writes. A value is what the tool's schema says, or JSON, or else text.
    ArgumentTags,
    /// `<function=NAME>`, then `<parameter=KEY>`, the value and `</parameter>` for every argument,
    /// `</function>`, as Qwen3-Coder and Qwen3.5 write. A value is as with [`Self::ArgumentTags`]; the line
    /// breaks around it belong to the form.
    FunctionTags,
    /// `<invoke name="NAME">`, then `<parameter name="KEY">VALUE</parameter>` for every argument, `</invoke>`, for
    /// every call, as MiniMax-M2 writes. A value is as with [`Self::ArgumentTags`].
    Invoke,
    /// `function<｜tool▁sep｜>NAME` and the arguments as a JSON block, as DeepSeek-V2.5, V3 and R1 write, or
    /// `NAME<｜tool▁sep｜>JSON`, as V3.1 does.
    DeepSeek,
    /// `functions.NAME:NUMBER<|tool_call_argument_begin|>JSON`, as Kimi-K2 writes.
    Kimi,
    /// `ID<|tool_call:name|>NAME<|tool_call:args|>JSON`, as Solar Open writes.
    Solar,
    /// `call:NAME{KEY:VALUE,...}`, as Gemma 4 writes: keys without quotes, text between `<|"|>`, all
    /// else as in JSON.
    Gemma,
}

/// What stands between kind, name and arguments of DeepSeek's calls.
pub(super) const DEEPSEEK_SEPARATOR: &str = "<｜tool▁sep｜>";

/// What stands between id and arguments of Kimi's calls.
pub(super) const KIMI_SEPARATOR: &str = "<|tool_call_argument_begin|>";

/// What stands before name and arguments of Solar's calls.
pub(super) const SOLAR_NAME: &str = "<|tool_call:name|>";
pub(super) const SOLAR_ARGUMENTS: &str = "<|tool_call:args|>";

/// What stands around text in Gemma's calls.
pub(super) const GEMMA_QUOTE: &str = "<|\"|>";

/// Deepest nesting of a value.
const DEPTH_MAX: usize = 64;

/// A call without its id: name and arguments.
type Call = (String, Value);

impl CallForm {
    /// The calls that stand between the tags, if nothing else does; `number`, the first one's, makes the ids.
    pub(super) fn parse(
        self,
        text: &str,
        types: &ArgumentTypes,
        number: usize,
    ) -> Option<Vec<ToolCall>> {
        let calls = match self {
            Self::JsonList => json_list(text)?,
            Self::Invoke => invokes(text, types)?,
            Self::Json => vec![json(serde_json::from_str(text.trim()).ok()?)?],
            Self::ArgumentTags => vec![argument_tags(text, types)?],
            Self::FunctionTags => vec![function_tags(text.trim(), types)?],
            Self::DeepSeek => vec![deepseek(text)?],
            Self::Kimi => vec![kimi(text)?],
            Self::Solar => vec![solar(text)?],
            Self::Gemma => vec![gemma(text.trim())?],
        };
        let numbered = calls.into_iter().zip(number..).map(|((name, arguments), number)| {
            let id = match self {
                Self::Kimi => ToolCall::function_id(&name, number),
                _ => ToolCall::numbered_id(number),
            };
            ToolCall { id, name, arguments }
        });
        Some(numbered.collect())
    }
}

/// `{"name": ..., "arguments": {...}}`.
fn json(call: Value) -> Option<Call> {
    let Value::Object(mut map) = call else { return None };
    let Some(Value::String(name)) = map.remove("name") else { return None };
    let arguments = map.remove("arguments").or_else(|| map.remove("parameters"));
    Some((name, arguments.unwrap_or_else(|| Value::Object(Map::new()))))
}

fn json_list(text: &str) -> Option<Vec<Call>> {
    let Value::Array(calls) = serde_json::from_str(text.trim()).ok()? else { return None };
    let calls: Vec<Call> = calls.into_iter().map(json).collect::<Option<_>>()?;
    (!calls.is_empty()).then_some(calls)
}

fn argument_tags(text: &str, types: &ArgumentTypes) -> Option<Call> {
    let (name, mut rest) = text.split_at(text.find("<arg_key>").unwrap_or(text.len()));
    let name = name.trim();
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '<') {
        return None;
    }
    let mut arguments = Map::new();
    while !rest.trim_start().is_empty() {
        let (key, after) = rest.trim_start().strip_prefix("<arg_key>")?.split_once("</arg_key>")?;
        let value = after.trim_start().strip_prefix("<arg_value>")?;
        let (value, after) = value.split_once("</arg_value>")?;
        let key = key.trim();
        arguments.insert(key.into(), types.value(name, key, value));
        rest = after;
    }
    Some((name.into(), Value::Object(arguments)))
}

fn function_tags(text: &str, types: &ArgumentTypes) -> Option<Call> {
    let inside = text.strip_prefix("<function=")?.strip_suffix("</function>")?;
    let (name, mut rest) = inside.split_once('>')?;
    let mut arguments = Map::new();
    while !rest.trim_start().is_empty() {
        let (key, after) = rest.trim_start().strip_prefix("<parameter=")?.split_once('>')?;
        let (value, after) = after.split_once("</parameter>")?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        arguments.insert(key.into(), types.value(name, key, value));
        rest = after;
    }
    (!name.is_empty()).then(|| (name.into(), Value::Object(arguments)))
}

fn invokes(text: &str, types: &ArgumentTypes) -> Option<Vec<Call>> {
    let mut calls = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (name, after) = named(rest, "<invoke name=")?;
        let mut arguments = Map::new();
        rest = after.trim_start();
        while let Some((key, after)) = named(rest, "<parameter name=") {
            let (value, after) = after.split_once("</parameter>")?;
            arguments.insert(key.into(), types.value(name, key, value));
            rest = after.trim_start();
        }
        rest = rest.strip_prefix("</invoke>")?.trim_start();
        calls.push((name.into(), Value::Object(arguments)));
    }
    (!calls.is_empty()).then_some(calls)
}

/// Takes `tag`, a name in quotes or without, and `>` from the beginning.
fn named<'a>(text: &'a str, tag: &str) -> Option<(&'a str, &'a str)> {
    let (name, after) = text.strip_prefix(tag)?.split_once('>')?;
    let name = name.trim().trim_matches(['"', '\'']);
    (!name.is_empty()).then_some((name, after))
}

fn deepseek(text: &str) -> Option<Call> {
    let (before, after) = text.split_once(DEEPSEEK_SEPARATOR)?;
    // Arguments may have the mark of a block in their text; no name begins as they do.
    let block = after.split_once("```json").filter(|_| !after.trim_start().starts_with('{'));
    let (name, arguments) = match block {
        Some((name, block)) => (name, block.trim().strip_suffix("```")?),
        None => (before, after),
    };
    named_object(name, arguments)
}

fn kimi(text: &str) -> Option<Call> {
    let (id, arguments) = text.split_once(KIMI_SEPARATOR)?;
    let (name, number) = id.trim().rsplit_once(':')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let name = name.strip_prefix("functions.").unwrap_or(name);
    if is_number { named_object(name, arguments) } else { None }
}

fn solar(text: &str) -> Option<Call> {
    let (_, after) = text.split_once(SOLAR_NAME)?;
    let (name, arguments) = after.split_once(SOLAR_ARGUMENTS)?;
    named_object(name, arguments)
}

/// A call whose arguments are a JSON object.
fn named_object(name: &str, arguments: &str) -> Option<Call> {
    let arguments = serde_json::from_str(arguments.trim()).ok().filter(Value::is_object)?;
    let name = name.trim();
    (!name.is_empty()).then(|| (name.into(), arguments))
}

fn gemma(text: &str) -> Option<Call> {
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
