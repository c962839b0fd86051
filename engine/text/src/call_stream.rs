//! Streaming of tool calls: events are emitted while the call arrives.

use serde_json::{Map, Value};

use super::argument_types::ArgumentTypes;
use super::call_form::{CallForm, argument, gemma_arguments};
use super::call_head::{Head, NoHead};
use super::json_compact::{JsonCompact, Progress};
use super::messages::ToolCall;
use super::output_event::OutputEvent;

/// Maximum length in bytes of the text before the arguments of a streamed call.
const HEAD_BYTES_MAX: usize = 4096;

/// Call numbers of one response, counted over the whole conversation.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallNumbers {
    /// Number of the first call of the response.
    first: usize,
    next: usize,
}

impl CallNumbers {
    pub fn new(first: usize) -> Self {
        Self { first, next: first }
    }
}

/// Context in which the events of a call are emitted.
pub(super) struct CallTeller<'a> {
    pub types: &'a ArgumentTypes,
    pub numbers: &'a mut CallNumbers,
    pub events: &'a mut Vec<OutputEvent>,
}

/// State of the argument reader, by syntax.
#[derive(Debug, Clone)]
enum Reader {
    /// JSON arguments.
    Json(JsonCompact),
    /// Tagged arguments, with the arguments read so far.
    Tags(Map<String, Value>),
    /// Arguments that can only be parsed as a whole.
    Whole,
    /// Text that is passed on unchanged.
    Raw,
    /// Arguments that violated their syntax. The text that follows is passed on unchanged.
    Broken,
}

/// A call whose start event was emitted.
#[derive(Debug, Clone)]
struct OpenCall {
    index: usize,
    id: String,
    name: String,
    /// Byte offset of the arguments.
    from: usize,
    /// Arguments emitted so far.
    told: String,
    reader: Reader,
}

#[derive(Debug, Clone)]
enum StreamState {
    Head,
    /// The rest can only be parsed when it is complete.
    Late,
    Arguments(Box<OpenCall>),
    Done,
}

/// Emits the calls between two tags while they arrive. A call starts where its arguments begin, and remains a
/// call whatever follows. Arguments that break off or violate their syntax become text: the part already
/// emitted and the rest as the model wrote it.
#[derive(Debug, Clone)]
pub(super) struct CallStream {
    form: CallForm,
    state: StreamState,
    at: usize,
    /// Number of bytes already searched for the end of an argument.
    searched: usize,
    calls: usize,
}

impl CallStream {
    pub fn new(form: CallForm) -> Self {
        Self { form, state: StreamState::Head, at: 0, searched: 0, calls: 0 }
    }

    pub fn has_begun(&self) -> bool {
        self.calls > 0
    }

    /// Starts a call of `name`. Its arguments are a JSON object if `is_json`, or else text.
    pub fn begin(&mut self, name: &str, is_json: bool, teller: &mut CallTeller<'_>) {
        let reader = if is_json { Reader::Json(JsonCompact::new()) } else { Reader::Raw };
        self.open(name.to_owned(), reader, teller);
    }

    /// Continues reading `text`, which holds all text between the tags so far.
    pub fn read(&mut self, text: &str, teller: &mut CallTeller<'_>) {
        loop {
            let goes_on = match &mut self.state {
                StreamState::Head => self.read_head(text, teller),
                StreamState::Arguments(_) => self.read_arguments(text, teller),
                StreamState::Late | StreamState::Done => false,
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Ends the calls of the complete `text`. `is_closed` is true if the closing tag was present. Returns the
    /// text after the calls, or `None` if there is no call.
    pub fn end<'a>(
        &mut self,
        text: &'a str,
        is_closed: bool,
        teller: &mut CallTeller<'_>,
    ) -> Option<&'a str> {
        self.read(text, teller);
        let state = std::mem::replace(&mut self.state, StreamState::Done);
        match state {
            StreamState::Arguments(call) => {
                self.end_arguments(*call, text, is_closed, teller);
                return Some("");
            }
            StreamState::Head | StreamState::Late if is_closed => {
                let calls = self.form.parse_late(&text[self.at..], self.calls == 0);
                if let Some(calls) = calls {
                    self.calls += calls.len();
                    calls.into_iter().for_each(|(name, value)| self.tell(&name, value, teller));
                    return Some("");
                }
            }
            _ => {}
        }
        // Closing characters of the arguments in any of the forms.
        let is_closing = |c: char| c.is_whitespace() || matches!(c, '}' | ']' | '`');
        self.has_begun().then(|| text[self.at..].trim_matches(is_closing))
    }

    /// Emits a call whose arguments are complete.
    pub fn tell(&mut self, name: &str, arguments: Value, teller: &mut CallTeller<'_>) {
        let (index, id) = self.start(name, teller);
        let call = ToolCall { id, name: name.to_owned(), arguments };
        tell_delta(index, &call.arguments_text(), teller);
        teller.events.push(OutputEvent::ToolCall(call));
    }

    /// Emits the start of a call. Returns the index and the id of the call.
    fn start(&mut self, name: &str, teller: &mut CallTeller<'_>) -> (usize, String) {
        let number = teller.numbers.next;
        teller.numbers.next += 1;
        let index = number - teller.numbers.first;
        let id = match self.form {
            CallForm::Kimi => ToolCall::function_id(name, number),
            _ => ToolCall::numbered_id(number),
        };
        let start = OutputEvent::ToolCallStart { index, id: id.clone(), name: name.to_owned() };
        teller.events.push(start);
        (index, id)
    }

    fn open(&mut self, name: String, reader: Reader, teller: &mut CallTeller<'_>) {
        let (index, id) = self.start(&name, teller);
        self.calls += 1;
        self.searched = self.at;
        let mut told = String::new();
        if matches!(reader, Reader::Tags(_)) {
            told.push('{');
            tell_delta(index, &told, teller);
        }
        let call = OpenCall { index, id, name, from: self.at, told, reader };
        self.state = StreamState::Arguments(Box::new(call));
    }

    fn read_head(&mut self, text: &str, teller: &mut CallTeller<'_>) -> bool {
        let rest = &text[self.at..];
        let seen = &rest[..rest.floor_char_boundary(HEAD_BYTES_MAX)];
        match self.form.head(seen, self.calls == 0) {
            Ok(Head::Call { name, at }) => {
                self.at += at;
                let reader = match self.form {
                    CallForm::ArgumentTags | CallForm::FunctionTags | CallForm::Invoke => {
                        Reader::Tags(Map::new())
                    }
                    CallForm::Gemma => Reader::Whole,
                    _ => Reader::Json(JsonCompact::new()),
                };
                self.open(name, reader, teller);
                true
            }
            Ok(Head::End { at }) => {
                self.at += at;
                self.state = StreamState::Done;
                false
            }
            Err(NoHead::More) if rest.len() < HEAD_BYTES_MAX => false,
            Err(_) => {
                self.state = StreamState::Late;
                false
            }
        }
    }

    fn read_arguments(&mut self, text: &str, teller: &mut CallTeller<'_>) -> bool {
        let StreamState::Arguments(call) = &mut self.state else { return false };
        let before = call.told.len();
        let progress = match &mut call.reader {
            Reader::Json(json) => json.read(text, &mut self.at, &mut call.told),
            Reader::Tags(found) => {
                let mut tags =
                    Tags { form: self.form, text, at: &mut self.at, searched: &mut self.searched };
                tags.read(&call.name, found, &mut call.told, teller.types)
            }
            Reader::Whole => Progress::More,
            Reader::Raw | Reader::Broken => {
                call.told.push_str(&text[self.at..]);
                self.at = text.len();
                Progress::More
            }
        };
        tell_delta(call.index, &call.told[before..], teller);
        match progress {
            Progress::More => false,
            Progress::Broken => {
                if let Reader::Json(json) = &call.reader {
                    self.at = json.printed(self.at);
                }
                call.reader = Reader::Broken;
                true
            }
            Progress::Complete => {
                let StreamState::Arguments(call) =
                    std::mem::replace(&mut self.state, StreamState::Head)
                else {
                    return false;
                };
                let value = match call.reader {
                    Reader::Tags(found) => Some(Value::Object(found)),
                    _ => json_value(&text[call.from..self.at], &call.told),
                };
                tell_call(call.id, call.name, call.told, value, teller);
                true
            }
        }
    }

    /// Emits a call whose arguments did not end properly.
    fn end_arguments(
        &mut self,
        mut call: OpenCall,
        text: &str,
        is_closed: bool,
        teller: &mut CallTeller<'_>,
    ) {
        if let Reader::Json(json) = &call.reader {
            self.at = json.printed(self.at);
        }
        let rest = &text[self.at..];
        let before = call.told.len();
        let mut value = None;
        match call.reader {
            Reader::Tags(found)
                if is_closed && self.form == CallForm::ArgumentTags && rest.trim().is_empty() =>
            {
                call.told.push('}');
                value = Some(Value::Object(found));
            }
            Reader::Whole => {
                value = gemma_arguments(rest);
                match &value {
                    Some(value) => call.told += &value.to_string(),
                    None => call.told += rest,
                }
            }
            _ => call.told += rest,
        }
        self.at = text.len();
        tell_delta(call.index, &call.told[before..], teller);
        tell_call(call.id, call.name, call.told, value, teller);
    }
}

struct Tags<'a, 't> {
    form: CallForm,
    text: &'t str,
    at: &'a mut usize,
    searched: &'a mut usize,
}

impl Tags<'_, '_> {
    fn read(
        &mut self,
        tool: &str,
        found: &mut Map<String, Value>,
        told: &mut String,
        types: &ArgumentTypes,
    ) -> Progress {
        let (argument_end, end) = match self.form {
            CallForm::ArgumentTags => ("</arg_value>", None),
            CallForm::FunctionTags => ("</parameter>", Some("</function>")),
            _ => ("</parameter>", Some("</invoke>")),
        };
        loop {
            let rest = &self.text[*self.at..];
            *self.at += rest.len() - rest.trim_start().len();
            let rest = rest.trim_start();
            if let Some(end) = end.filter(|end| rest.starts_with(end)) {
                *self.at += end.len();
                told.push('}');
                return Progress::Complete;
            }
            *self.searched = (*self.searched).max(*self.at);
            let Some(length) = self.text[*self.searched..].find(argument_end) else {
                let seen = self.text.len().saturating_sub(argument_end.len());
                let seen = self.text.floor_char_boundary(seen);
                *self.searched = (*self.searched).max(seen);
                return Progress::More;
            };
            let behind = *self.searched + length + argument_end.len();
            let written = &self.text[*self.at..behind];
            let Some((key, value)) = argument(self.form, tool, written, types) else {
                return Progress::Broken;
            };
            *self.at = behind;
            // The first of two arguments of the same name was already emitted.
            if !found.contains_key(&key) {
                let comma = if found.is_empty() { "" } else { "," };
                *told += &format!("{comma}{}:{value}", Value::from(key.as_str()));
                found.insert(key, value);
            }
        }
    }
}

fn tell_delta(index: usize, delta: &str, teller: &mut CallTeller<'_>) {
    if !delta.is_empty() {
        let delta = delta.to_owned();
        teller.events.push(OutputEvent::ToolCallArguments { index, delta });
    }
}

/// Returns the value of JSON arguments that were emitted as `told`. If `text` has duplicate members, `told`
/// lacks the later ones, and the value is parsed from `told` instead of `text`.
fn json_value(text: &str, told: &str) -> Option<Value> {
    let value: Option<Value> = serde_json::from_str(text).ok();
    let printed = value.as_ref().map(Value::to_string);
    if printed.as_deref() == Some(told) { value } else { serde_json::from_str(told).ok() }
}

/// Emits the complete call. Arguments that do not print as they were emitted become text.
fn tell_call(
    id: String,
    name: String,
    told: String,
    value: Option<Value>,
    teller: &mut CallTeller<'_>,
) {
    let printed = value.as_ref().map(Value::to_string);
    let arguments = match value {
        Some(value) if printed.as_ref() == Some(&told) => value,
        _ => Value::String(told),
    };
    teller.events.push(OutputEvent::ToolCall(ToolCall { id, name, arguments }));
}
