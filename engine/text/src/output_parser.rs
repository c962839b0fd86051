//! A model's raw output, split into answer, reasoning and tool calls as it comes.

use super::channels::ChannelParser;
use super::output_event::{OutputEvent, OutputPlace};
use super::output_format::OutputFormat;
use super::tagged_output::TaggedParser;

/// Text that is looked at together: what follows a marker is looked at again, so that a long text with a
/// marker everywhere would take the square of its length.
const PIECE_BYTES: usize = 1024;

/// Splits text, as it comes, into events. Markers may be cut anywhere; what may be the start of
/// one is held back.
#[derive(Debug, Clone)]
pub struct OutputParser {
    form: ParserState,
}

#[derive(Debug, Clone)]
enum ParserState {
    Tagged(Box<TaggedParser>),
    Channels(ChannelParser),
}

impl OutputParser {
    /// A parser for one answer, whose first tool call has the number `first_call`; numbers make
    /// the ids of calls, which are unique in a conversation.
    pub fn new(format: OutputFormat, first_call: usize) -> Self {
        let form = match format {
            OutputFormat::Tagged(format) => {
                ParserState::Tagged(Box::new(TaggedParser::new(*format, first_call)))
            }
            OutputFormat::Channels { opened } => {
                ParserState::Channels(ChannelParser::new(&opened, first_call))
            }
        };
        Self { form }
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str) -> Vec<OutputEvent> {
        let mut events = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
            append(&mut events, self.push_piece(piece));
            rest = after;
        }
        events
    }

    fn push_piece(&mut self, text: &str) -> Vec<OutputEvent> {
        match &mut self.form {
            ParserState::Tagged(parser) => parser.push(text),
            ParserState::Channels(parser) => parser.push(text),
        }
    }

    /// The rest when no more text comes: an unfinished marker is text after all, and so is a tool call whose start was
    /// not told. One that began ends as far as its arguments came.
    pub fn finish(&mut self) -> Vec<OutputEvent> {
        match &mut self.form {
            ParserState::Tagged(parser) => parser.finish(),
            ParserState::Channels(parser) => parser.finish(),
        }
    }

    /// Where the output is.
    pub fn place(&self) -> OutputPlace<'_> {
        match &self.form {
            ParserState::Tagged(parser) => parser.place(),
            ParserState::Channels(parser) => parser.place(),
        }
    }

    /// A marker has ended the answer: what follows is no part of it.
    pub fn has_ended(&self) -> bool {
        match &self.form {
            ParserState::Tagged(parser) => parser.has_ended(),
            ParserState::Channels(parser) => parser.has_ended(),
        }
    }
}

/// Adds the events of the next piece; words that go on stay one event.
fn append(events: &mut Vec<OutputEvent>, more: Vec<OutputEvent>) {
    let mut more = more.into_iter();
    match (events.last_mut(), more.next()) {
        (Some(OutputEvent::Text(last)), Some(OutputEvent::Text(text)))
        | (Some(OutputEvent::Reasoning(last)), Some(OutputEvent::Reasoning(text))) => {
            last.push_str(&text);
        }
        (
            Some(OutputEvent::ToolCallArguments { delta: last, .. }),
            // Of the same call: another's start stands between those of two.
            Some(OutputEvent::ToolCallArguments { delta, .. }),
        ) => last.push_str(&delta),
        (_, first) => events.extend(first),
    }
    events.extend(more);
}
