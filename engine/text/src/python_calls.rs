//! Tool calls in the syntax of Python, `[NAME(KEY=VALUE, ...), ...]`, as LFM2 reads and writes them.

use serde_json::{Map, Number, Value};

use super::call_form::Call;
use super::messages::{Message, MessageContent, ToolCall};

/// Tags around the calls of a response.
pub(super) const CALLS_OPEN: &str = "<|tool_call_start|>";
pub(super) const CALLS_CLOSE: &str = "<|tool_call_end|>";

/// Maximum nesting of a value.
const DEPTH_MAX: usize = 64;

/// Reads a list of calls, or calls without brackets around them. Returns `None` if the text contains anything
/// else. Values are Python's literals; JSON's `true`, `false` and `null` are read too.
pub(super) fn python_calls(text: &str) -> Option<Vec<Call>> {
    let mut source = Source(text);
    let is_list = source.take('[');
    let mut calls = Vec::new();
    loop {
        calls.push(source.call()?);
        if !source.take(',') {
            break;
        }
    }
    if is_list && !source.take(']') {
        return None;
    }
    source.is_at_end().then_some(calls)
}

/// Returns the conversation with calls as the text that the model wrote, for templates that have no place for
/// them. `mark` stands for the tags, since those of the content itself are no special tokens.
pub(super) fn as_content(messages: &[Message], mark: char) -> Vec<Message> {
    let mut all = messages.to_vec();
    for message in all.iter_mut().filter(|message| !message.tool_calls.is_empty()) {
        let calls = print(&std::mem::take(&mut message.tool_calls));
        // Default: absent content is empty.
        let said = message.content.as_ref().map(MessageContent::text).unwrap_or_default();
        message.content = Some(MessageContent::Text(format!("{said}{mark}{calls}{mark}")));
    }
    all
}

/// Returns rendered text with the tags in the places of marks.
pub(super) fn with_tags(text: &str, mark: char) -> String {
    let mut out = String::with_capacity(text.len());
    for (index, part) in text.split(mark).enumerate() {
        out += match index {
            0 => "",
            _ if index % 2 == 1 => CALLS_OPEN,
            _ => CALLS_CLOSE,
        };
        out += part;
    }
    out
}

fn print(calls: &[ToolCall]) -> String {
    let call = |call: &ToolCall| {
        let arguments = match &call.arguments {
            Value::Object(map) => {
                let pairs = map.iter().map(|(key, value)| format!("{key}={}", literal(value)));
                pairs.collect::<Vec<_>>().join(", ")
            }
            other => literal(other),
        };
        format!("{}({arguments})", call.name)
    };
    format!("[{}]", calls.iter().map(call).collect::<Vec<_>>().join(", "))
}

/// Returns a value as a literal of Python.
fn literal(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Number(number) => number.to_string(),
        // JSON's escapes are Python's too.
        Value::String(_) => value.to_string(),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(literal).collect::<Vec<_>>().join(", "))
        }
        Value::Object(map) => {
            let pair = |(key, value): (&String, &Value)| {
                format!("{}: {}", Value::from(key.as_str()), literal(value))
            };
            format!("{{{}}}", map.iter().map(pair).collect::<Vec<_>>().join(", "))
        }
    }
}

/// Rest of a text that is being read.
struct Source<'a>(&'a str);

impl<'a> Source<'a> {
    /// Removes white space and, if it follows, a character. Returns whether it was present.
    fn take(&mut self, mark: char) -> bool {
        self.0 = self.0.trim_start();
        let rest = self.0.strip_prefix(mark);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn is_at_end(&self) -> bool {
        self.0.trim().is_empty()
    }

    /// Removes the characters up to the first that does not fit.
    fn word(&mut self, fits: impl Fn(char) -> bool) -> &'a str {
        self.0 = self.0.trim_start();
        let end = self.0.find(|c| !fits(c)).unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(end);
        self.0 = rest;
        word
    }

    /// Reads a name: words with dots or hyphens, as tools are named.
    fn name(&mut self) -> Option<&'a str> {
        let name = self.word(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '-'));
        (!name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit())).then_some(name)
    }

    fn call(&mut self) -> Option<Call> {
        let name = self.name()?.to_owned();
        let mut arguments = Map::new();
        if !self.take('(') {
            return None;
        }
        self.items(')', |source| {
            let key = source.name()?.to_owned();
            let value = source.take('=').then(|| source.value(DEPTH_MAX))??;
            arguments.insert(key, value).is_none().then_some(())
        })?;
        Some((name, Value::Object(arguments)))
    }

    /// Reads items with commas between them and the character that closes them.
    fn items(&mut self, close: char, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        while !self.take(close) {
            item(self)?;
            if !self.take(',') {
                return self.take(close).then_some(());
            }
        }
        Some(())
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        for (open, close) in [('[', ']'), ('(', ')')] {
            if self.take(open) {
                let mut items = Vec::new();
                self.items(close, |source| {
                    items.push(source.value(depth)?);
                    Some(())
                })?;
                return Some(Value::Array(items));
            }
        }
        if self.take('{') {
            let mut map = Map::new();
            self.items('}', |source| {
                let key = source.text()?;
                let value = source.take(':').then(|| source.value(depth))??;
                map.insert(key, value);
                Some(())
            })?;
            return Some(Value::Object(map));
        }
        if self.0.trim_start().starts_with(['"', '\'']) {
            return self.text().map(Value::String);
        }
        let word = self.word(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '+' | '-'));
        match word {
            "None" | "null" => Some(Value::Null),
            "True" | "true" => Some(Value::Bool(true)),
            "False" | "false" => Some(Value::Bool(false)),
            number => number_of(number).map(Value::Number),
        }
    }

    /// Reads text between single or double quotes, with Python's common escapes.
    fn text(&mut self) -> Option<String> {
        let quote = ['"', '\''].into_iter().find(|quote| self.take(*quote))?;
        let mut out = String::new();
        let mut characters = self.0.char_indices();
        while let Some((at, character)) = characters.next() {
            match character {
                '\\' => match characters.next()?.1 {
                    'n' => out.push('\n'),
                    't' => out.push('\t'),
                    'r' => out.push('\r'),
                    'b' => out.push('\u{8}'),
                    'f' => out.push('\u{c}'),
                    'u' => {
                        let code: String = characters.by_ref().take(4).map(|(_, c)| c).collect();
                        out.push(char::from_u32(u32::from_str_radix(&code, 16).ok()?)?);
                    }
                    escaped if matches!(escaped, '\\' | '"' | '\'') => out.push(escaped),
                    other => out.extend(['\\', other]),
                },
                _ if character == quote => {
                    self.0 = &self.0[at + quote.len_utf8()..];
                    return Some(out);
                }
                _ => out.push(character),
            }
        }
        None
    }
}

/// Reads a number of JSON, which Python writes alike.
fn number_of(word: &str) -> Option<Number> {
    match serde_json::from_str(word) {
        Ok(Value::Number(number)) => Some(number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Option<Value> {
        let calls = python_calls(text)?;
        Some(calls.into_iter().map(|(name, arguments)| json!([name, arguments])).collect())
    }

    #[test]
    fn calls_are_read_as_python_writes_them() {
        let cases = [
            ("[f()]", json!([["f", {}]])),
            ("f(a=1)", json!([["f", { "a": 1 }]])),
            (
                "[f(a=\"x, y)\", b=-2.5e3), g.h-i(c=['it', \"it's\"], d={'k': None, \"l\": (True, False,)})]",
                json!([
                    ["f", { "a": "x, y)", "b": -2500.0 }],
                    ["g.h-i", { "c": ["it", "it's"], "d": { "k": null, "l": [true, false] } }],
                ]),
            ),
            (
                "[ f ( a = 'l\\n\\'q\\' \\u00e9 \\\\ \\d' , ) ]",
                json!([["f", { "a": "l\n'q' é \\ \\d" }]]),
            ),
            ("[f(a=true, b=null)]", json!([["f", { "a": true, "b": null }]])),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_list_of_calls_is_none() {
        let deep = format!("[f(a={}1{})]", "[".repeat(70), "]".repeat(70));
        for text in [
            "",
            "[]",
            "f",
            "[f(]",
            "[f()",
            "[f()] and",
            "[f(1)]",
            "[f(a)]",
            "[f(a=)]",
            "[f(a=b)]",
            "[f(a='x)]",
            "[f(a=1 b=2)]",
            "[f(a=1, a=2)]",
            "[1()]",
            "[f(a=01)]",
            "[f(a='\\u12')]",
            "[f(a='\\ud800')]",
            &deep,
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_printed_is_read_again() {
        let arguments =
            json!({ "a": [1, -2.5, null, true], "b": { "k'": "\"\n\u{1}\u{8}\u{c}'" }, "c": "é" });
        let call = |name: &str, arguments: &Value| ToolCall {
            id: String::new(),
            name: name.into(),
            arguments: arguments.clone(),
        };
        let text = print(&[call("f", &arguments), call("g", &json!({}))]);
        assert_eq!(read(&text), Some(json!([["f", arguments], ["g", {}]])), "{text}");
    }
}
