//! Constraints that start after the reasoning, or after the marker of a tool call.

use std::sync::Arc;

use super::fake::*;
use nestling_runtime::{
    Constraint, ConstraintContext, ConstraintError, ConstraintSource, Conversation, Event,
    FinishReason, GenerateOptions, GenerationSummary, SamplingParams, Starts, TokenMask, Writes,
};
use nestling_text::{ChatTemplate, Message, Tokenizer, ToolCall, ToolSchema};
use serde_json::json;

const MARKERS: [&str; 4] = ["<think>", "</think>", "<tool_call>", "</tool_call>"];

/// Tokenizer of letters and markers.
pub fn tokenizer() -> Tokenizer {
    let words = (' '..='~').map(String::from).chain(MARKERS.map(String::from));
    let vocab: serde_json::Map<_, _> = words.zip(0..).map(|(word, id)| (word, id.into())).collect();
    let added = MARKERS.iter().map(|marker| {
        json!({"id": vocab[*marker], "content": marker, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": false})
    });
    let file = json!({
        "version": "1.0", "added_tokens": added.collect::<Vec<_>>(), "decoder": { "type": "Fuse" },
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    Tokenizer::from_bytes("tokenizer.json", file.to_string().as_bytes()).unwrap()
}

/// A constraint that allows a single text from its start.
#[derive(Debug)]
pub struct Script {
    pub text: &'static str,
    pub starts: Starts,
    pub writes: Writes,
}

struct Reader {
    tokens: Vec<u32>,
    at: usize,
    starts: Starts,
    writes: Writes,
}

impl ConstraintSource for Script {
    fn constraint(
        &self,
        context: &ConstraintContext<'_>,
    ) -> Result<Box<dyn Constraint>, ConstraintError> {
        let tokenizer = context.tokenizer.unwrap();
        let mut tokens = vec![];
        let mut rest = self.text;
        while !rest.is_empty() {
            let marker = MARKERS.iter().find(|marker| rest.starts_with(**marker));
            let (word, after) = rest.split_at(marker.map_or(1, |marker| marker.len()));
            tokens.push(tokenizer.token_to_id(word).unwrap());
            rest = after;
        }
        Ok(Box::new(Reader { tokens, at: 0, starts: self.starts, writes: self.writes }))
    }
}

impl Constraint for Reader {
    fn starts(&self) -> Starts {
        self.starts
    }

    fn writes(&self) -> Writes {
        self.writes
    }

    fn start(&mut self, _: Option<&str>) -> Result<bool, ConstraintError> {
        self.at = 0;
        Ok(true)
    }

    fn mask(&mut self, mask: &mut TokenMask) -> Result<(), ConstraintError> {
        if let Some(token) = self.tokens.get(self.at) {
            mask.allow(*token);
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        assert_eq!(self.tokens.get(self.at), Some(&token));
        self.at += 1;
        Ok(())
    }

    fn may_end(&mut self) -> Result<bool, ConstraintError> {
        Ok(self.at == self.tokens.len())
    }

    fn is_done(&mut self) -> Result<bool, ConstraintError> {
        Ok(self.writes == Writes::Text && self.at == self.tokens.len())
    }
}

/// Returns the output of a model that writes only `wanted` unless the constraint prevents it.
fn events(template: &str, wanted: &str, script: Script, max_tokens: usize) -> Vec<Event> {
    let engine = engine();
    let (tokenizer, template) = (tokenizer(), ChatTemplate::new(template).unwrap());
    let bias = vec![(tokenizer.token_to_id(wanted).unwrap(), 1e6)];
    let model = model_of(&engine, FakeRunner::new(256, 64, 16), Some(tokenizer), Some(template));
    let mut conversation = Conversation::new([Message::user("abc")]);
    conversation.tools = vec![ToolSchema::function("f", "Does.", json!({}))];
    let options = GenerateOptions {
        sampling: SamplingParams { logit_bias: bias, ..SamplingParams::greedy() }.into(),
        max_tokens: Some(max_tokens),
        constraint: Some(Arc::new(script)),
        ..GenerateOptions::default()
    };
    let generation = model.session().generate(conversation, &options).unwrap();
    generation.map(Result::unwrap).collect()
}

fn finished(events: &[Event]) -> &GenerationSummary {
    let Some(Event::Finished(finished)) = events.last() else { panic!("{events:?}") };
    finished
}

fn texts(events: &[Event]) -> [String; 2] {
    let mut found = [String::new(), String::new()];
    for event in events {
        match event {
            Event::Reasoning(text) => found[0] += text,
            Event::Text(text) => found[1] += text,
            _ => {}
        }
    }
    found
}

#[test]
fn what_follows_the_reasoning_is_what_the_constraint_says() {
    // The marker also occurs in the text, where it has no meaning.
    let script = || Script {
        text: "{\"a\": \"<tool_call>\"}",
        starts: Starts::AfterReasoning,
        writes: Writes::Text,
    };
    let opened = "{{ messages[0].content }}{% if tools %}<tool_call>{% endif %}<think>";
    let all = events(opened, "</think>", script(), 60);
    assert_eq!(texts(&all), ["", script().text]);
    assert_eq!(finished(&all).reason, FinishReason::Stop);
    // The model never closes the reasoning, so no answer starts.
    let all = events(opened, "x", script(), 12);
    assert_eq!(texts(&all), ["x".repeat(12), String::new()]);
    assert_eq!(finished(&all).reason, FinishReason::Length);
    // The template opens no reasoning, so the answer starts immediately.
    let plain = "{{ messages[0].content }}{% if tools %}<tool_call>{% endif %}";
    let all = events(plain, "x", script(), 60);
    assert_eq!(texts(&all), ["", script().text]);
}

#[test]
fn each_tool_call_is_what_the_constraint_says_and_comes_in_pieces() {
    let script = Script {
        text: "{\"name\": \"f\", \"arguments\": {\"a\": [1, 2]}}</tool_call>",
        starts: Starts::AtToolCall,
        writes: Writes::Calls,
    };
    // The marker, the first call, and part of the second one up to the token limit.
    let length = script.text.len() - "</tool_call>".len() + 2;
    let template = "{{ messages[0].content }}{% if tools %}<tool_call>{% endif %}";
    let all = events(template, "<tool_call>", script, length + 35);
    let mut told = [String::new(), String::new()];
    let mut starts = vec![];
    let mut calls = vec![];
    for event in &all {
        match event {
            Event::ToolCallStart { index, id, name } => {
                starts.push((*index, id.clone(), name.clone()))
            }
            Event::ToolCallArguments { index, delta } => told[*index] += delta,
            Event::ToolCall(call) => calls.push(call.clone()),
            Event::Finished(_) => {}
            other => panic!("{other:?}"),
        }
    }
    let start = |at: usize| (at, format!("call_{at}"), "f".to_owned());
    assert_eq!(starts, [start(0), start(1)]);
    let wanted = |at: usize, arguments| ToolCall { id: start(at).1, name: "f".into(), arguments };
    let cut = &told[1];
    assert_eq!(told[0], "{\"a\":[1,2]}");
    assert!(told[0].starts_with(cut) && !cut.is_empty() && *cut != told[0], "{cut}");
    assert_eq!(calls, [wanted(0, json!({"a": [1, 2]})), wanted(1, json!(cut))]);
    assert_eq!(finished(&all).reason, FinishReason::Length);
}
