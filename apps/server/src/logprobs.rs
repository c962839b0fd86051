//! Tokens and log-probabilities in the formats of the APIs.

use nestling::{Event, Model, TokenEvent};
use serde_json::{Map, Value, json};

use crate::tokens::token_text;

/// Tokens whose text has not been emitted yet.
#[derive(Debug, Default)]
pub(crate) struct PendingTokens {
    tokens: Vec<TokenEvent>,
    /// Number of reasoning tokens so far.
    pub reasoning: usize,
}

impl PendingTokens {
    /// Buffers a token event, or returns the buffered tokens that belong to a text event.
    pub fn take(&mut self, event: &Event) -> Vec<TokenEvent> {
        match event {
            Event::Token(token) => {
                self.tokens.push(token.clone());
                Vec::new()
            }
            Event::Reasoning(_) => {
                self.reasoning += self.tokens.len();
                std::mem::take(&mut self.tokens)
            }
            _ => std::mem::take(&mut self.tokens),
        }
    }
}

/// Returns the log-probabilities of tokens in the format of chats.
pub(crate) fn of_chat(model: &Model, tokens: &[TokenEvent]) -> Value {
    json!({ "content": of_response(model, tokens), "refusal": null })
}

/// Returns the log-probabilities of tokens in the format of responses.
pub(crate) fn of_response(model: &Model, tokens: &[TokenEvent]) -> Value {
    tokens.iter().map(|token| chat_token(model, token)).collect::<Vec<_>>().into()
}

fn chat_token(model: &Model, token: &TokenEvent) -> Value {
    let entry = |id: u32, log_prob: f32| {
        let (text, bytes) = token_text(model, id);
        json!({ "token": text, "logprob": finite(log_prob), "bytes": bytes })
    };
    // Default: a token forced by a constraint has probability 1.
    let mut value = entry(token.token, token.log_prob.unwrap_or(0.0));
    let top: Vec<Value> = token.top.iter().map(|(id, log_prob)| entry(*id, *log_prob)).collect();
    if let Value::Object(map) = &mut value {
        map.insert("top_logprobs".into(), top.into());
    }
    value
}

/// Clamps a log-probability to -9999. JSON has no infinity, and the API uses this value instead.
fn finite(log_prob: f32) -> f32 {
    log_prob.max(-9999.0)
}

/// Log-probability lists of a completion, extended per token.
#[derive(Debug, Default)]
pub(crate) struct CompletionLogprobs {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// Appends a token whose text starts at character `offset`. Returns the length of its text in characters.
    pub fn add(&mut self, model: &Model, token: &TokenEvent, offset: usize) -> usize {
        let (text, _) = token_text(model, token.token);
        let characters = text.chars().count();
        let mut top = Map::new();
        for (id, log_prob) in &token.top {
            // The most likely of several tokens with the same text is kept.
            top.entry(token_text(model, *id).0).or_insert_with(|| finite(*log_prob).into());
        }
        // Default: only the first token of a prompt has no log-probability.
        let log_prob = token.log_prob.map_or(Value::Null, |log_prob| finite(log_prob).into());
        if !log_prob.is_null() {
            top.entry(text.clone()).or_insert_with(|| log_prob.clone());
        }
        let top = if log_prob.is_null() { Value::Null } else { Value::Object(top) };
        self.tokens.push(text.into());
        self.token_logprobs.push(log_prob);
        self.top_logprobs.push(top);
        self.text_offset.push(offset);
        characters
    }

    pub fn into_json(self) -> Value {
        let Self { tokens, token_logprobs, top_logprobs, text_offset } = self;
        json!({
            "tokens": tokens, "token_logprobs": token_logprobs, "top_logprobs": top_logprobs,
            "text_offset": text_offset,
        })
    }
}
