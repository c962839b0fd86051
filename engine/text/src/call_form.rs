//! How models write tool calls between their tags.

use serde_json::{Map, Value};

use super::argument_types::{ArgumentTypes, untyped};

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
pub(super) type Call = (String, Value);

/// `{"name": ..., "arguments": {...}}`.
pub(super) fn json(call: Value) -> Option<Call> {
    let Value::Object(mut map) = call else { return None };
    let Some(Value::String(name)) = map.remove("name") else { return None };
    let arguments = map.remove("arguments").or_else(|| map.remove("parameters"));
    Some((name, arguments.unwrap_or_else(|| Value::Object(Map::new()))))
}

/// A list of such calls.
pub(super) fn json_list(text: &str) -> Option<Vec<Call>> {
    let Value::Array(calls) = serde_json::from_str(text.trim()).ok()? else { return None };
    let calls: Vec<Call> = calls.into_iter().map(json).collect::<Option<_>>()?;
    (!calls.is_empty()).then_some(calls)
}

/// Whether a text before the first argument is the name of a function, as GLM writes it.
pub(super) fn is_glm_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c == '<')
}

/// An argument with the tags around it.
pub(super) fn argument(
    form: CallForm,
    tool: &str,
    text: &str,
    types: &ArgumentTypes,
) -> Option<(String, Value)> {
    let (key, value) = match form {
        CallForm::ArgumentTags => {
            let (key, after) = text.strip_prefix("<arg_key>")?.split_once("</arg_key>")?;
            let value = after.trim_start().strip_prefix("<arg_value>")?;
            (key.trim(), value.strip_suffix("</arg_value>")?)
        }
        CallForm::FunctionTags => {
            let (key, after) = text.strip_prefix("<parameter=")?.split_once('>')?;
            let value = after.strip_suffix("</parameter>")?;
            let value = value.strip_prefix('\n').unwrap_or(value);
            (key, value.strip_suffix('\n').unwrap_or(value))
        }
        _ => {
            let (key, after) = text.strip_prefix("<parameter name=")?.split_once('>')?;
            let key = function_name(key);
            (!key.is_empty()).then_some((key, after.strip_suffix("</parameter>")?))?
        }
    };
    Some((key.into(), types.value(tool, key, value)))
}

/// A name in quotes or without.
pub(super) fn function_name(text: &str) -> &str {
    text.trim().trim_matches(['"', '\''])
}

/// The name in the id of Kimi's calls.
pub(super) fn kimi_name(id: &str) -> Option<&str> {
    let (name, number) = id.trim().rsplit_once(':')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| name.strip_prefix("functions.").unwrap_or(name))
}

/// Arguments as Gemma writes them, `{KEY:VALUE,...}`, if nothing else follows.
pub(super) fn gemma_arguments(text: &str) -> Option<Value> {
    let mut rest = text;
    let arguments = gemma_value(&mut rest, DEPTH_MAX)?;
    rest.trim().is_empty().then_some(arguments)
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
