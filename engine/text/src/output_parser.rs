//! Incremental parser of model output: separates text, reasoning and tool calls.

use super::channels::ChannelParser;
use super::output_event::{OutputEvent, OutputPlace};
use super::output_format::OutputFormat;
use super::tagged_output::TaggedParser;

/// Number of bytes that are parsed at once. The text after a marker is searched again, so that a long text
/// full of markers would take quadratic time.
const PIECE_BYTES: usize = 1024;

/// Splits output text into events as it arrives. Markers may be split across chunks; text that may be the
/// start of a marker is held back.
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
    /// Creates a parser for one response. The first tool call gets the number `first_call`; numbers determine
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

    /// Consumes a chunk of text and returns its events.
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

    /// Returns the remaining events at the end of the text. An unfinished marker becomes text, as does a tool
    /// call whose start was not emitted. A started call ends with the arguments received so far.
    pub fn finish(&mut self) -> Vec<OutputEvent> {
        match &mut self.form {
            ParserState::Tagged(parser) => parser.finish(),
            ParserState::Channels(parser) => parser.finish(),
        }
    }

    /// Returns the current place in the output.
    pub fn place(&self) -> OutputPlace<'_> {
        match &self.form {
            ParserState::Tagged(parser) => parser.place(),
            ParserState::Channels(parser) => parser.place(),
        }
    }

    /// Returns whether a marker has ended the response. Later text is not part of it.
    pub fn has_ended(&self) -> bool {
        match &self.form {
            ParserState::Tagged(parser) => parser.has_ended(),
            ParserState::Channels(parser) => parser.has_ended(),
        }
    }
}

/// Appends the events of a chunk. Consecutive text of one kind is merged into one event.
fn append(events: &mut Vec<OutputEvent>, more: Vec<OutputEvent>) {
    let mut more = more.into_iter();
    match (events.last_mut(), more.next()) {
        (Some(OutputEvent::Text(last)), Some(OutputEvent::Text(text)))
        | (Some(OutputEvent::Reasoning(last)), Some(OutputEvent::Reasoning(text))) => {
            last.push_str(&text);
        }
        (
            Some(OutputEvent::ToolCallArguments { delta: last, .. }),
            // Both belong to the same call, because a start event separates the arguments of two calls.
            Some(OutputEvent::ToolCallArguments { delta, .. }),
        ) => last.push_str(&delta),
        (_, first) => events.extend(first),
    }
    events.extend(more);
}
