//! Parser of output with tags around reasoning and tool calls.

use super::call_stream::{CallNumbers, CallStream, CallTeller};
use super::output_event::{CALL_BYTES_MAX, OutputEvent, OutputPlace};
use super::output_format::{TagPair, TaggedFormat};
use super::stop::longest_held;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaggedState {
    Text,
    Reasoning,
    ToolCall,
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TagEffect {
    Reasoning,
    Answer,
    AnswerEnd,
    ToolCall,
    /// Closes the reasoning, or has no effect.
    Text,
    End,
}

/// Splits text into events as it arrives. Tags may be split across chunks; text that may be the start of one
/// is held back. Line breaks next to tags belong to the format and are dropped. Reasoning, and tags around
/// the response, open only before the first text of the response. Text between call tags that is not a call
/// remains text, or reasoning if it started there.
#[derive(Debug, Clone)]
pub(super) struct TaggedParser {
    format: TaggedFormat,
    place: TaggedState,
    /// Undecided text: the start of a tag, or a tool call so far.
    held: String,
    /// State before the held tool call.
    before_call: TaggedState,
    /// Set when a call ended the reasoning: its closing tag then has no effect.
    left_open: bool,
    /// Number of bytes of a held tool call that were searched for its end.
    searched: usize,
    /// Line breaks that are dropped if a tag follows.
    breaks: String,
    /// Set directly after a tag: line breaks are dropped.
    after_tag: bool,
    /// Set after the first text of the response.
    answered: bool,
    /// Set after a tag that opens the text of the response.
    in_answer: bool,
    stream: CallStream,
    numbers: CallNumbers,
}

impl TaggedParser {
    /// Creates a parser for one response, whose first tool call gets the number `calls`.
    pub fn new(format: TaggedFormat, calls: usize) -> Self {
        let in_reasoning = format.starts_in_reasoning && format.reasoning.is_some();
        Self {
            stream: CallStream::new(format.call_form),
            numbers: CallNumbers::new(calls),
            format,
            place: if in_reasoning { TaggedState::Reasoning } else { TaggedState::Text },
            held: String::new(),
            before_call: TaggedState::Text,
            left_open: false,
            searched: 0,
            breaks: String::new(),
            after_tag: in_reasoning,
            answered: false,
            in_answer: false,
        }
    }

    pub fn place(&self) -> OutputPlace<'_> {
        match self.place {
            TaggedState::Text => OutputPlace::Text { is_final: true },
            TaggedState::Reasoning => OutputPlace::Reasoning,
            TaggedState::ToolCall => OutputPlace::Call { name: None, text: &self.held },
            TaggedState::End => OutputPlace::End,
        }
    }

    pub fn has_ended(&self) -> bool {
        self.place == TaggedState::End
    }

    /// Consumes a chunk of text and returns its events.
    pub fn push(&mut self, text: &str) -> Vec<OutputEvent> {
        let mut events = Vec::new();
        self.held.push_str(text);
        while self.step(&mut events) {}
        events
    }

    /// Returns the remaining events at the end of the text. An unfinished tag becomes text, as does a tool
    /// call that did not start.
    pub fn finish(&mut self) -> Vec<OutputEvent> {
        let mut events = Vec::new();
        let mut rest = std::mem::take(&mut self.held);
        if self.place == TaggedState::ToolCall {
            let Some(tags) = self.format.tool_call.clone() else { return events };
            rest = self.end_call(&rest, [&tags.open, ""], &mut events);
        }
        self.emit(&rest, &mut events);
        if !self.after_tag {
            let breaks = std::mem::take(&mut self.breaks);
            self.emit_words(breaks, &mut events);
        }
        events
    }

    /// Processes the held text up to the next tag. Returns `false` if more text is needed.
    fn step(&mut self, events: &mut Vec<OutputEvent>) -> bool {
        if self.place == TaggedState::ToolCall {
            return self.step_tool_call(events);
        }
        let tags = self.tags();
        let found = tags
            .iter()
            .filter_map(|(tag, effect)| Some((self.held.find(tag.as_str())?, tag, *effect)));
        if let Some((at, tag, effect)) = found.min_by_key(|(at, ..)| *at) {
            let before = self.held[..at].to_owned();
            let after = self.held[at + tag.len()..].to_owned();
            self.emit(&before, events);
            if matches!(effect, TagEffect::Reasoning | TagEffect::Answer)
                && !before.trim().is_empty()
            {
                // The response has started, so that the tag is ordinary text.
                self.held = self.held.split_off(at);
                return true;
            }
            self.breaks.clear();
            self.after_tag = true;
            self.in_answer = match effect {
                TagEffect::Answer => true,
                TagEffect::AnswerEnd => false,
                _ => self.in_answer,
            };
            self.before_call = self.place;
            self.left_open |= self.ends_reasoning(tag, effect);
            self.place = match effect {
                TagEffect::Reasoning => TaggedState::Reasoning,
                TagEffect::ToolCall => TaggedState::ToolCall,
                TagEffect::End => TaggedState::End,
                TagEffect::Answer | TagEffect::AnswerEnd | TagEffect::Text => TaggedState::Text,
            };
            self.held = after;
            self.searched = 0;
            self.stream = CallStream::new(self.format.call_form);
            return true;
        }
        let keep = longest_held(&self.held, tags.iter().map(|(tag, _)| tag.as_str()));
        let rest = self.held.split_off(self.held.len() - keep);
        let text = std::mem::replace(&mut self.held, rest);
        self.emit(&text, events);
        false
    }

    /// Returns whether a tag ends the current reasoning without being its closing tag.
    fn ends_reasoning(&self, tag: &str, effect: TagEffect) -> bool {
        let closes = self.format.reasoning.as_ref().is_some_and(|pair| pair.close == tag);
        self.place == TaggedState::Reasoning && effect == TagEffect::Text && !closes
    }

    /// Returns the tags that are active in the current state, with their effects.
    fn tags(&self) -> Vec<(String, TagEffect)> {
        let format = &self.format;
        if self.place == TaggedState::Reasoning {
            let close = format.reasoning.as_ref().map(|pair| &pair.close);
            let mut tags: Vec<_> =
                close.map(|tag| (tag.clone(), TagEffect::Text)).into_iter().collect();
            if let (Some(pair), true) = (&format.tool_call, format.calls_in_reasoning) {
                tags.push((pair.open.clone(), TagEffect::ToolCall));
                tags.extend(format.silent.iter().map(|tag| (tag.clone(), TagEffect::Text)));
            }
            return tags;
        }
        if self.place == TaggedState::End {
            return Vec::new();
        }
        let mut tags: Vec<(&String, TagEffect)> = Vec::new();
        tags.extend(format.ends.iter().map(|tag| (tag, TagEffect::End)));
        tags.extend(format.silent.iter().map(|tag| (tag, TagEffect::Text)));
        if let (Some(pair), false) = (&format.reasoning, self.answered) {
            tags.push((&pair.open, TagEffect::Reasoning));
        }
        if let (Some(pair), true) = (&format.reasoning, self.left_open) {
            tags.push((&pair.close, TagEffect::Text));
        }
        if let Some(pair) = &format.tool_call {
            tags.push((&pair.open, TagEffect::ToolCall));
        }
        match &format.answer {
            Some(pair) if self.in_answer => tags.push((&pair.close, TagEffect::AnswerEnd)),
            Some(pair) if !self.answered => tags.push((&pair.open, TagEffect::Answer)),
            _ => {}
        }
        tags.into_iter().map(|(tag, effect)| (tag.clone(), effect)).collect()
    }

    fn step_tool_call(&mut self, events: &mut Vec<OutputEvent>) -> bool {
        let Some(tags) = self.format.tool_call.clone() else { return false };
        let found = self.held[self.searched..].find(&tags.close).map(|at| self.searched + at);
        let Some(at) = found.filter(|at| *at <= CALL_BYTES_MAX) else {
            return self.step_long_call(&tags, events);
        };
        let inside = self.held[..at].to_owned();
        self.held = self.held.split_off(at + tags.close.len());
        let text = self.end_call(&inside, [&tags.open, &tags.close], events);
        self.emit(&text, events);
        true
    }

    /// Ends the calls of `inside` and returns the text that is not part of a call. `tags` are the tags around
    /// it.
    fn end_call(&mut self, inside: &str, tags: [&str; 2], events: &mut Vec<OutputEvent>) -> String {
        let [open, close] = tags;
        let types = &self.format.argument_types;
        let mut teller = CallTeller { types, numbers: &mut self.numbers, events };
        let rest = self.stream.end(inside, !close.is_empty(), &mut teller);
        self.place = self.before_call;
        let Some(rest) = rest else {
            self.after_tag &= close.is_empty();
            return format!("{open}{inside}{close}");
        };
        self.left_open |= self.place == TaggedState::Reasoning;
        self.place = TaggedState::Text;
        self.answered = true;
        rest.to_owned()
    }

    /// Continues an unfinished call. A call that exceeds the limit ends there, independent of how the output
    /// is split.
    fn step_long_call(&mut self, tags: &TagPair, events: &mut Vec<OutputEvent>) -> bool {
        let seen = self.held.len().saturating_sub(tags.close.len());
        self.searched = self.held.floor_char_boundary(seen);
        let is_long = self.held.len() > CALL_BYTES_MAX + tags.close.len();
        if is_long {
            let rest = self.held.split_off(self.held.floor_char_boundary(CALL_BYTES_MAX));
            let inside = std::mem::replace(&mut self.held, rest);
            let text = self.end_call(&inside, [&tags.open, ""], events);
            self.after_tag = false;
            self.emit(&text, events);
            return true;
        }
        let held = longest_held(&self.held, std::iter::once(tags.close.as_str()));
        let certain = (self.held.len() - held).min(CALL_BYTES_MAX);
        let inside = &self.held[..self.held.floor_char_boundary(certain)];
        let types = &self.format.argument_types;
        let mut teller = CallTeller { types, numbers: &mut self.numbers, events };
        self.stream.read(inside, &mut teller);
        false
    }

    /// Emits text of the current state, without the line breaks next to tags.
    fn emit(&mut self, text: &str, events: &mut Vec<OutputEvent>) {
        let mut text = text;
        if self.after_tag {
            text = text.trim_start_matches(['\n', '\r']);
            if text.is_empty() {
                return;
            }
            self.after_tag = false;
        }
        let words = text.trim_end_matches(['\n', '\r']);
        if words.is_empty() {
            self.breaks.push_str(text);
            return;
        }
        let mut whole = std::mem::take(&mut self.breaks);
        whole.push_str(words);
        self.breaks.push_str(&text[words.len()..]);
        self.emit_words(whole, events);
    }

    fn emit_words(&mut self, text: String, events: &mut Vec<OutputEvent>) {
        if text.is_empty() {
            return;
        }
        match self.place {
            TaggedState::End => {}
            TaggedState::Reasoning => events.push(OutputEvent::Reasoning(text)),
            TaggedState::Text | TaggedState::ToolCall => {
                self.answered |= !text.trim().is_empty();
                events.push(OutputEvent::Text(text));
            }
        }
    }
}
