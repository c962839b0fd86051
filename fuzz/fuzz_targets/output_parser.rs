//! Model output of arbitrary words and markers, split arbitrarily. The parser must return the same events for
//! any split, and must not lose unmarked text.

#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use nestling_text::{OutputEvent, OutputFormat, OutputParser, StopMatcher, ToolSchema};

/// Markers that identify formats or occur in their outputs.
const MARKERS: &[&str] = &[
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
    ">",
    "\n",
    "\n\n",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "function",
    "```json\n",
    "\n```",
    "<|channel>thought",
    "<channel|>",
    "<turn|>",
    "<|tool_response>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_call>call:",
    "call:f{",
    "}",
    "<|\"|>",
    "a:",
    ",",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
    "<|constrain|>",
    "assistant",
    "analysis",
    "commentary",
    "final",
    " to=functions.f",
    " to=python",
    "{\"name\": \"f\", \"arguments\": {\"a\": [1, null]}}",
    "{}",
    "[",
    "]",
    "\"",
    "<",
    "<|",
    "é",
    "<|\"",
    "<think",
    "1.5e3",
    "true",
    "<tool_calls>",
    "</tool_calls>",
    "<|extra_0|>",
    "<answer>",
    "</answer>",
    "<response>",
    "</response>",
    "<|im_start|>",
    "[{\"name\": \"f\"}]",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<invoke name=\"f\">",
    "</invoke>",
    "<parameter name=\"a\">",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<|tool_call_argument_begin|>",
    "functions.f:0",
    "<|tool_call:begin|>",
    "<|tool_call:name|>",
    "<|tool_call:args|>",
    "<|tool_call:end|>",
    "<|tool_calls|>",
    "<|begin|>assistant",
    "<|think|>",
    "<|content|>",
    "<|calls|>",
];

#[derive(Arbitrary, Debug)]
enum Part {
    Marker(u8),
    Text(String),
    /// A marker repeated beyond the header limits. The limit for tool calls, one mebibyte, has unit tests.
    Many(u8, u8),
}

#[derive(Arbitrary, Debug)]
struct Input {
    /// Markers in the template.
    template: Vec<u8>,
    prompt: Vec<Part>,
    with_tools: bool,
    answer: Vec<Part>,
    cuts: Vec<u16>,
    stop: Vec<Part>,
}

fn marker(number: u8) -> &'static str {
    MARKERS[usize::from(number) % MARKERS.len()]
}

fn text_of(parts: &[Part]) -> String {
    let mut text = String::new();
    for part in parts.iter().take(64) {
        match part {
            Part::Marker(number) => text.push_str(marker(*number)),
            Part::Text(words) => text.push_str(words),
            Part::Many(number, count) => {
                text.push_str(&marker(*number).repeat(usize::from(*count) * 8));
            }
        }
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    }
    text
}

/// Maximum size of a text in bytes: four times the limit of a header.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// Splits a text at the cuts, each moved to a character boundary.
fn pieces<'a>(text: &'a str, cuts: &[u16]) -> Vec<&'a str> {
    let place = |cut: &u16| {
        let at = usize::from(*cut) % (text.len() + 1);
        (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
    };
    let mut places: Vec<usize> = cuts.iter().take(64).map(place).collect();
    places.extend([0, text.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

/// Returns the events, with adjacent ones of the same kind joined. The pieces of each call must add up to the
/// call.
fn events(format: &OutputFormat, pieces: &[&str]) -> (Vec<OutputEvent>, bool) {
    let mut parser = OutputParser::new(format.clone(), 3);
    let mut all: Vec<OutputEvent> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    let ended = parser.has_ended();
    all.extend(parser.finish());
    let mut out: Vec<OutputEvent> = Vec::new();
    for event in all {
        match (out.last_mut(), event) {
            (Some(OutputEvent::Text(last)), OutputEvent::Text(more)) => last.push_str(&more),
            (Some(OutputEvent::Reasoning(last)), OutputEvent::Reasoning(more)) => {
                last.push_str(&more);
            }
            (
                Some(OutputEvent::ToolCallArguments { delta: last, .. }),
                OutputEvent::ToolCallArguments { delta, .. },
            ) => last.push_str(&delta),
            (_, event) => out.push(event),
        }
    }
    for (place, event) in out.iter().enumerate() {
        let OutputEvent::ToolCall(call) = event else { continue };
        let told = match &out[place - 1] {
            OutputEvent::ToolCallArguments { delta, .. } => delta.as_str(),
            _ => "",
        };
        assert_eq!(told, call.arguments_text());
    }
    (out, ended)
}

fn stopped(stop: &str, pieces: &[&str]) -> Option<(String, bool)> {
    let mut matcher = StopMatcher::new(vec![stop.to_owned()]).ok()?;
    let mut out = String::new();
    for piece in pieces {
        let found = matcher.push(piece);
        out.push_str(&found.text);
        if found.stopped.is_some() {
            return Some((out, true));
        }
    }
    Some((out + &matcher.finish(), false))
}

fuzz_target!(|input: Input| {
    let template: String = input.template.iter().take(16).map(|number| marker(*number)).collect();
    let schema = serde_json::json!({"properties": {"a": {"type": "string"}}});
    let tools = [ToolSchema::function("f", "Does.", schema)];
    let tools = if input.with_tools { &tools[..] } else { &[] };
    let format = OutputFormat::detect(&template, &text_of(&input.prompt), tools);
    let answer = text_of(&input.answer);
    let pieces = pieces(&answer, &input.cuts);
    let whole = events(&format, &[&answer]);
    assert_eq!(events(&format, &pieces), whole, "{format:?} {pieces:?}");
    if !answer.is_empty() {
        let plain = vec![OutputEvent::Text(answer.clone())];
        assert_eq!(events(&OutputFormat::plain(), &pieces), (plain, false));
    }
    let stop = text_of(&input.stop);
    if let Some(found) = stopped(&stop, &pieces) {
        let expected = match answer.find(&stop) {
            Some(at) => (answer[..at].to_owned(), true),
            None => (answer.clone(), false),
        };
        assert_eq!(found, expected);
    }
});
