//! Syntax of tool calls between their tags, for each model family.

use serde_json::{Map, Value};

use super::argument_types::{ArgumentTypes, untyped};

/// Syntax of a tool call between its tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CallForm {
    /// A JSON object with `name` and `arguments`, as Qwen3 and Hermes write.
    #[default]
    Json,
    /// A JSON list of such objects, as Hunyuan writes.
    JsonList,
    /// The name, then `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>` for each argument (GLM). A value
    /// has the type that the tool's schema gives it. Without one it is parsed as JSON, and is text if that
    /// fails.
    ArgumentTags,
    /// `<function=NAME>`, then `<parameter=KEY>`, the value and `</parameter>` for each argument,
    /// `</function>` (Qwen3-Coder and Qwen3.5). Values are typed as in [`Self::ArgumentTags`]. The line
    /// breaks around a value belong to the syntax.
    FunctionTags,
    /// `<invoke name="NAME">`, then `<parameter name="KEY">VALUE</parameter>` for each argument, `</invoke>`,
    /// repeated for each call (MiniMax-M2). Values are typed as in [`Self::ArgumentTags`].
    Invoke,
    /// `function<｜tool▁sep｜>NAME` and the arguments as a JSON block (DeepSeek-V2.5, V3 and R1), or
    /// `NAME<｜tool▁sep｜>JSON` (V3.1).
    DeepSeek,
    /// `functions.NAME:NUMBER<|tool_call_argument_begin|>JSON` (Kimi-K2).
    Kimi,
    /// `ID<|tool_call:name|>NAME<|tool_call:args|>JSON` (Solar Open).
    Solar,
    /// `call:NAME{KEY:VALUE,...}` (Gemma 4): keys without quotes, text between `<|"|>`, everything else as in
    /// JSON.
    Gemma,
    /// `[NAME(KEY=VALUE, ...), ...]` with literals of Python, or a list as in [`Self::JsonList`] (LFM2).
    Python,
}

/// Separator between kind, name and arguments of a DeepSeek call.
pub(super) const DEEPSEEK_SEPARATOR: &str = "<｜tool▁sep｜>";

/// Separator between id and arguments of a Kimi call.
pub(super) const KIMI_SEPARATOR: &str = "<|tool_call_argument_begin|>";

/// Markers before the name and before the arguments of a Solar call.
pub(super) const SOLAR_NAME: &str = "<|tool_call:name|>";
pub(super) const SOLAR_ARGUMENTS: &str = "<|tool_call:args|>";

/// Quote around text in Gemma's calls.
pub(super) const GEMMA_QUOTE: &str = "<|\"|>";

/// Maximum nesting of a value.
const DEPTH_MAX: usize = 64;

/// Name and arguments of a call, without its id.
pub(super) type Call = (String, Value);

/// Reads a call `{"name": ..., "arguments": {...}}`. `parameters` is accepted in place of `arguments`.
pub(super) fn json(call: Value) -> Option<Call> {
    let Value::Object(mut map) = call else { return None };
    let Some(Value::String(name)) = map.remove("name") else { return None };
    let arguments = map.remove("arguments").or_else(|| map.remove("parameters"));
    Some((name, arguments.unwrap_or_else(|| Value::Object(Map::new()))))
}

/// Reads a non-empty list of calls of the form that [`json`] reads.
pub(super) fn json_list(text: &str) -> Option<Vec<Call>> {
    let Value::Array(calls) = serde_json::from_str(text.trim()).ok()? else { return None };
    let calls: Vec<Call> = calls.into_iter().map(json).collect::<Option<_>>()?;
    (!calls.is_empty()).then_some(calls)
}

/// Returns whether the text before the first argument is a function name in GLM's syntax.
pub(super) fn is_glm_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c == '<')
}

/// Reads an argument including the tags around it.
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

/// Strips white space and quotes from a function name.
pub(super) fn function_name(text: &str) -> &str {
    text.trim().trim_matches(['"', '\''])
}

/// Returns the function name in the id of a Kimi call.
pub(super) fn kimi_name(id: &str) -> Option<&str> {
    let (name, number) = id.trim().rsplit_once(':')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| name.strip_prefix("functions.").unwrap_or(name))
}

/// Reads arguments in Gemma's syntax, `{KEY:VALUE,...}`. Returns `None` if other text follows.
pub(super) fn gemma_arguments(text: &str) -> Option<Value> {
    let mut rest = text;
    let arguments = gemma_value(&mut rest, DEPTH_MAX)?;
    rest.trim().is_empty().then_some(arguments)
}

/// Reads a value from the start of `rest`.
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
struct ScalarText {
    text: String,
    is_quoted: bool,
}

/// Reads comma-separated items up to and including `close`.
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

/// Reads quoted text, in Gemma's quotes (without escapes) or JSON's. Unquoted text is read up to one of
/// `ends`, which must occur.
fn gemma_word(rest: &mut &str, ends: &[char]) -> Option<ScalarText> {
    if take(rest, GEMMA_QUOTE) {
        let (text, after) = rest.split_once(GEMMA_QUOTE)?;
        *rest = after;
        return Some(ScalarText { text: text.into(), is_quoted: true });
    }
    if rest.trim_start().starts_with('"') {
        let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<String>();
        let text = stream.next()?.ok()?;
        *rest = rest.get(stream.byte_offset()..)?;
        return Some(ScalarText { text, is_quoted: true });
    }
    let (word, after) = rest.split_at(rest.find(ends)?);
    *rest = after;
    let text = word.trim().to_owned();
    (!text.is_empty()).then_some(ScalarText { text, is_quoted: false })
}

/// Removes `mark` and the white space before it from the start of `rest`. Returns whether `mark` was present.
fn take(rest: &mut &str, mark: &str) -> bool {
    let after = rest.trim_start().strip_prefix(mark);
    *rest = after.unwrap_or(rest);
    after.is_some()
}
