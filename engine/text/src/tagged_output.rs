//! Output whose reasoning and tool calls stand between tags.

use super::call_stream::{CallNumbers, CallStream, CallTeller};
use super::output_event::{CALL_BYTES_MAX, OutputEvent, OutputPlace};
use super::output_format::{TagPair, TaggedFormat};
use super::stop::longest_held;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaggedState {
    Text,
    Reasoning,
    ToolCall,
    /// Nothing more belongs to the answer.
    End,
}

/// What a tag does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TagEffect {
    /// Opens the reasoning.
    Reasoning,
    /// Opens the answer's words.
    Answer,
    /// Closes them.
    AnswerEnd,
    /// Opens a tool call.
    ToolCall,
    /// Closes the reasoning, or says nothing.
    Text,
    /// Ends the answer.
    End,
}

/// Splits text, as it comes, into events. Tags may be cut anywhere; what may be the start of one
/// is held back. Line breaks next to tags belong to the format and are dropped. Reasoning opens
/// only before the first word of the answer, as do tags around the answer; what is no tool call between its tags stays
/// text, or reasoning where it began in it.
#[derive(Debug, Clone)]
pub(super) struct TaggedParser {
    format: TaggedFormat,
    place: TaggedState,
    /// Not yet decided: the start of a tag, or a tool call so far.
    held: String,
    /// Where the tool call began that is held.
    before_call: TaggedState,
    /// Calls ended the reasoning: the tag that closes it says nothing more.
    left_open: bool,
    /// Bytes of a held tool call in which its end does not begin.
    searched: usize,
    /// Line breaks that are dropped if a tag follows.
    breaks: String,
    /// A tag came just before: line breaks are dropped.
    after_tag: bool,
    /// Words of the answer have come.
    answered: bool,
    /// A tag around the words of the answer has opened.
    in_answer: bool,
    /// The tool call that is held, as it is told.
    stream: CallStream,
    numbers: CallNumbers,
}

impl TaggedParser {
    /// A parser for one answer, whose first tool call has the number `calls`.
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

    /// Where the output is.
    pub fn place(&self) -> OutputPlace<'_> {
        match self.place {
            TaggedState::Text => OutputPlace::Text { is_final: true },
            TaggedState::Reasoning => OutputPlace::Reasoning,
            TaggedState::ToolCall => OutputPlace::Call { name: None, text: &self.held },
            TaggedState::End => OutputPlace::End,
        }
    }

    /// A tag has ended the answer.
    pub fn has_ended(&self) -> bool {
        self.place == TaggedState::End
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str) -> Vec<OutputEvent> {
        let mut events = Vec::new();
        self.held.push_str(text);
        while self.step(&mut events) {}
        events
    }

    /// The rest when no more text comes: an unfinished tag or tool call is text after all.
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

    /// Handles the held text up to the next tag; false when more text is needed.
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
                // The answer has begun: from here on the tag is a word like others.
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

    /// Whether a tag that closes no reasoning is in some, which has ended with it.
    fn ends_reasoning(&self, tag: &str, effect: TagEffect) -> bool {
        let closes = self.format.reasoning.as_ref().is_some_and(|pair| pair.close == tag);
        self.place == TaggedState::Reasoning && effect == TagEffect::Text && !closes
    }

    /// The tags that mean something here, and what they do.
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

    /// Ends the calls of `inside`; the text that is none. `tags` are those that stand around it.
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

    /// A call that has not ended yet; one that is too long ends at the limit, wherever the output is cut.
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

    /// Passes on text of the present place, without the line breaks next to tags.
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
