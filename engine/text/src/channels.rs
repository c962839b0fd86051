//! Output as messages in channels: the harmony format of gpt-oss.
//!
//! `<|start|>ROLE to=RECIPIENT<|channel|>CHANNEL <|constrain|>TYPE<|message|>TEXT`, then `<|end|>`, or
//! `<|call|>` and `<|return|>` at the end of a turn. The recipient may also follow the channel. Source: the
//! format's description published with gpt-oss, and its chat template.

use serde_json::{Map, Value};

use super::argument_types::ArgumentTypes;
use super::call_form::CallForm;
use super::call_stream::{CallNumbers, CallStream, CallTeller};
use super::output_event::{CALL_BYTES_MAX, OutputEvent, OutputPlace};
use super::stop::longest_held;

pub(super) const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const END: &str = "<|end|>";
const CALL: &str = "<|call|>";
const RETURN: &str = "<|return|>";
const CONSTRAIN: &str = "<|constrain|>";

/// Markers that are present in all templates of the format.
pub(super) const TEMPLATE_MARKERS: [&str; 3] = [START, CHANNEL, MESSAGE];

/// All markers of the format.
pub(super) const MARKERS: [&str; 7] = [START, CHANNEL, MESSAGE, END, CALL, RETURN, CONSTRAIN];

/// Markers that end the text of a message. Models sometimes omit `<|end|>` before the next message.
const AFTER_TEXT: [&str; 5] = [END, CALL, RETURN, START, CHANNEL];

/// Maximum length of a header in bytes. A longer one is treated as text without a header.
const HEADER_BYTES_MAX: usize = 4096;

/// Upper bound on the length of a marker in bytes.
const MARKER_BYTES_MAX: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq)]
enum ChannelState {
    /// Before `<|start|>`.
    Between,
    Header,
    Analysis,
    /// The final channel, or commentary for the user.
    Answer {
        is_final: bool,
    },
    Call {
        recipient: String,
    },
    End,
}

/// Splits messages into events as the text arrives. `analysis` is reasoning, a message with a recipient is a
/// tool call, and everything else is text. Consecutive messages of one kind become separate paragraphs.
#[derive(Debug, Clone)]
pub(super) struct ChannelParser {
    place: ChannelState,
    /// Undecided text: a header or tool call so far, or the start of a marker.
    held: String,
    /// Number of bytes of a held tool call that were searched for markers.
    searched: usize,
    /// Number of bytes of a held header that the prompt wrote.
    opened_bytes: usize,
    has_text: bool,
    has_reasoning: bool,
    /// Set until the message emits its first text.
    is_new: bool,
    stream: CallStream,
    numbers: CallNumbers,
    /// Empty: arguments in this format are JSON and need no schema.
    types: ArgumentTypes,
}

impl ChannelParser {
    /// Creates a parser for one response. The prompt ends with `opened` after its last `<|start|>`.
    pub fn new(opened: &str, calls: usize) -> Self {
        let mut parser = Self {
            place: ChannelState::Header,
            held: String::new(),
            searched: 0,
            opened_bytes: 0,
            has_text: false,
            has_reasoning: false,
            is_new: true,
            stream: CallStream::new(CallForm::Json),
            numbers: CallNumbers::new(calls),
            types: ArgumentTypes::default(),
        };
        // Text of the prompt produces no events.
        parser.push(opened);
        if parser.place == ChannelState::End {
            parser.place = ChannelState::Between;
        }
        parser.opened_bytes = parser.held.len();
        (parser.has_text, parser.has_reasoning) = (false, false);
        parser
    }

    pub fn place(&self) -> OutputPlace<'_> {
        match &self.place {
            ChannelState::Between | ChannelState::Header => OutputPlace::Between,
            ChannelState::Analysis => OutputPlace::Reasoning,
            ChannelState::Answer { is_final } => OutputPlace::Text { is_final: *is_final },
            ChannelState::Call { recipient } => {
                let name = recipient.strip_prefix("functions.").unwrap_or(recipient);
                OutputPlace::Call { name: Some(name), text: &self.held }
            }
            ChannelState::End => OutputPlace::End,
        }
    }

    pub fn has_ended(&self) -> bool {
        self.place == ChannelState::End
    }

    /// Consumes a chunk of text and returns its events.
    pub fn push(&mut self, text: &str) -> Vec<OutputEvent> {
        let mut events = Vec::new();
        self.held.push_str(text);
        while self.step(&mut events) {}
        events
    }

    /// Returns the remaining events at the end of the text. A tool call with complete arguments counts as
    /// complete, since `<|call|>` may have ended the generation.
    pub fn finish(&mut self) -> Vec<OutputEvent> {
        let mut events = Vec::new();
        let rest = std::mem::take(&mut self.held);
        match self.place.clone() {
            ChannelState::Between | ChannelState::End => {}
            ChannelState::Header => self.emit_headless(&rest, &mut events),
            ChannelState::Analysis | ChannelState::Answer { .. } => self.emit(&rest, &mut events),
            ChannelState::Call { recipient } => self.close_call(&recipient, &rest, &mut events),
        }
        self.place = ChannelState::End;
        events
    }

    /// Processes the held text up to the next marker. Returns `false` if more text is needed.
    fn step(&mut self, events: &mut Vec<OutputEvent>) -> bool {
        match self.place.clone() {
            ChannelState::End => {
                self.held.clear();
                false
            }
            ChannelState::Between => self.step_between(),
            ChannelState::Header => self.step_header(events),
            ChannelState::Analysis | ChannelState::Answer { .. } => self.step_text(events),
            ChannelState::Call { recipient } => self.step_call(&recipient, events),
        }
    }

    fn step_between(&mut self) -> bool {
        let Some((at, marker)) = first_of(&self.held, &[START, CHANNEL]) else {
            let keep = longest_held(&self.held, [START, CHANNEL].into_iter());
            self.held.drain(..self.held.len() - keep);
            return false;
        };
        self.begin_header(at, marker);
        true
    }

    /// Starts a header at a marker. A channel marker is part of the header.
    fn begin_header(&mut self, at: usize, marker: &str) {
        let skip = if marker == START { at + START.len() } else { at };
        self.held.drain(..skip);
        self.opened_bytes = 0;
        self.place = ChannelState::Header;
    }

    fn step_header(&mut self, events: &mut Vec<OutputEvent>) -> bool {
        self.is_new = true;
        let found = first_of(&self.held, &[MESSAGE, END, CALL, RETURN, START]);
        let Some((at, marker)) = found.filter(|(at, _)| *at <= HEADER_BYTES_MAX) else {
            let is_long = self.held.len() > HEADER_BYTES_MAX + MARKER_BYTES_MAX;
            if is_long {
                self.held.drain(..self.opened_bytes);
                self.place = ChannelState::Answer { is_final: true };
            }
            return is_long;
        };
        let header = self.held[..at].to_owned();
        if marker == START {
            self.begin_header(at, START);
            return true;
        }
        self.held.drain(..at + marker.len());
        if marker != MESSAGE {
            self.emit_headless(&header, events);
        }
        self.place = match marker {
            MESSAGE => place_of(&header),
            END => ChannelState::Between,
            _ => ChannelState::End,
        };
        true
    }

    /// Emits text that the model wrote without completing the header that the prompt opened.
    fn emit_headless(&mut self, header: &str, events: &mut Vec<OutputEvent>) {
        // Default: a header that ends within what the prompt opened has no text.
        let text = header.get(self.opened_bytes..).unwrap_or_default();
        if self.opened_bytes > 0 && !text.contains(CHANNEL) {
            self.place = ChannelState::Answer { is_final: true };
            self.emit(text, events);
        }
    }

    fn step_text(&mut self, events: &mut Vec<OutputEvent>) -> bool {
        let Some((at, marker)) = first_of(&self.held, &AFTER_TEXT) else {
            let keep = longest_held(&self.held, AFTER_TEXT.into_iter());
            let rest = self.held.split_off(self.held.len() - keep);
            let text = std::mem::replace(&mut self.held, rest);
            self.emit(&text, events);
            return false;
        };
        let text = self.held[..at].to_owned();
        self.emit(&text, events);
        self.end_message(at, marker);
        true
    }

    fn step_call(&mut self, recipient: &str, events: &mut Vec<OutputEvent>) -> bool {
        let found = first_of(&self.held[self.searched..], &AFTER_TEXT);
        let found = found.map(|(at, marker)| (self.searched + at, marker));
        let Some((at, marker)) = found.filter(|(at, _)| *at <= CALL_BYTES_MAX) else {
            let seen = self.held.len().saturating_sub(MARKER_BYTES_MAX);
            self.searched = self.held.floor_char_boundary(seen);
            let is_long = self.held.len() > CALL_BYTES_MAX + MARKER_BYTES_MAX;
            if is_long {
                return self.end_long_call(recipient, events);
            }
            let certain = self.held.len() - longest_held(&self.held, AFTER_TEXT.into_iter());
            let certain = self.held.floor_char_boundary(certain.min(CALL_BYTES_MAX));
            self.read_call(recipient, certain, events);
            return false;
        };
        self.searched = 0;
        let text = self.held[..at].to_owned();
        self.close_call(recipient, &text, events);
        self.end_message(at, marker);
        true
    }

    /// Continues after the marker at the end of a message.
    fn end_message(&mut self, at: usize, marker: &str) {
        if matches!(marker, START | CHANNEL) {
            return self.begin_header(at, marker);
        }
        self.held.drain(..at + marker.len());
        let ends_turn = matches!(
            self.place,
            ChannelState::Answer { is_final: true } | ChannelState::Call { .. }
        );
        self.place =
            if marker == END && !ends_turn { ChannelState::Between } else { ChannelState::End };
    }

    /// Ends a call at the size limit. A call that has not started becomes text.
    fn end_long_call(&mut self, recipient: &str, events: &mut Vec<OutputEvent>) -> bool {
        let at = self.held.floor_char_boundary(CALL_BYTES_MAX);
        self.read_call(recipient, at, events);
        if self.stream.has_begun() {
            let rest = self.held.split_off(at);
            let text = std::mem::replace(&mut self.held, rest);
            self.close_call(recipient, &text, events);
        }
        self.searched = 0;
        self.place = ChannelState::Answer { is_final: false };
        true
    }

    /// Reads the first `length` bytes of a held call.
    fn read_call(&mut self, recipient: &str, length: usize, events: &mut Vec<OutputEvent>) {
        let text = &self.held[..length];
        let function = recipient.strip_prefix("functions.");
        let mut teller = CallTeller { types: &self.types, numbers: &mut self.numbers, events };
        if !self.stream.has_begun() {
            let beginning = &text[..text.floor_char_boundary(HEADER_BYTES_MAX)];
            match (function, beginning.trim_start().chars().next()) {
                (Some(name), Some('{')) => self.stream.begin(name, true, &mut teller),
                // Built-in tools take any text. Text that starts like JSON can only be classified when it is
                // complete.
                (None, Some(first)) if first != '{' => {
                    self.stream.begin(recipient, false, &mut teller)
                }
                _ => return,
            }
        }
        self.stream.read(text, &mut teller);
    }

    /// Emits the call of a complete message, or text if the message is no call.
    fn close_call(&mut self, recipient: &str, text: &str, events: &mut Vec<OutputEvent>) {
        let mut stream = std::mem::replace(&mut self.stream, CallStream::new(CallForm::Json));
        let function = recipient.strip_prefix("functions.");
        let mut teller = CallTeller { types: &self.types, numbers: &mut self.numbers, events };
        let starts = text.trim_start().chars().next();
        if let (false, Some(name), Some('{')) = (stream.has_begun(), function, starts) {
            stream.begin(name, true, &mut teller);
        }
        if stream.has_begun() {
            let rest = stream.end(text, true, &mut teller);
            if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
                self.place = ChannelState::Answer { is_final: false };
                self.emit(rest, events);
            }
            return;
        }
        let arguments = match (serde_json::from_str(text.trim()), function) {
            (Ok(Value::Object(arguments)), None) => Value::Object(arguments),
            (_, Some(_)) if text.trim().is_empty() => Value::Object(Map::new()),
            (_, None) => text.into(),
            (_, Some(_)) => {
                self.place = ChannelState::Answer { is_final: false };
                return self.emit(text, events);
            }
        };
        // Default: built-in tools have no prefix and are called by the whole recipient name.
        let name = function.unwrap_or(recipient);
        stream.tell(name, arguments, &mut teller);
    }

    fn emit(&mut self, text: &str, events: &mut Vec<OutputEvent>) {
        if text.is_empty() {
            return;
        }
        let is_reasoning = self.place == ChannelState::Analysis;
        let before = if is_reasoning { &mut self.has_reasoning } else { &mut self.has_text };
        let gap = if *before && self.is_new { "\n\n" } else { "" };
        *before = true;
        self.is_new = false;
        let text = [gap, text].concat();
        events.push(match is_reasoning {
            true => OutputEvent::Reasoning(text),
            false => OutputEvent::Text(text),
        });
    }
}

/// Returns the first marker in a text and its byte offset.
fn first_of<'a>(text: &str, markers: &[&'a str]) -> Option<(usize, &'a str)> {
    markers.iter().filter_map(|marker| Some((text.find(marker)?, *marker))).min()
}

fn place_of(header: &str) -> ChannelState {
    let (role, channel) = header.split_once(CHANNEL).unwrap_or((header, ""));
    let words = |text: &str| text.replace(CHANNEL, " ").replace(CONSTRAIN, " ");
    let (role, channel) = (words(role), words(channel));
    // A message without a role continues the assistant's.
    let speaker = role.split_whitespace().next().unwrap_or("assistant");
    if speaker != "assistant" && !speaker.starts_with("to=") {
        return ChannelState::End;
    }
    let mut all = role.split_whitespace().chain(channel.split_whitespace());
    let recipient = all.find_map(|word| word.strip_prefix("to="));
    match (recipient, channel.split_whitespace().next()) {
        (Some(to), _) if !matches!(to, "" | "all" | "user" | "assistant") => {
            ChannelState::Call { recipient: to.into() }
        }
        (_, Some("analysis")) => ChannelState::Analysis,
        (_, channel) => ChannelState::Answer { is_final: channel != Some("commentary") },
    }
}
