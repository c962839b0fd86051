//! Tokens and what they say: log-probabilities in the forms of the API.

use nestling::{Event, Model, TokenEvent};
use serde_json::{Map, Value, json};

use crate::tokens::token_text;

/// Tokens whose text has not come yet.
#[derive(Debug, Default)]
pub(crate) struct Unsaid {
    tokens: Vec<TokenEvent>,
    /// Tokens of the reasoning so far.
    pub reasoning: usize,
}

impl Unsaid {
    /// Keeps a token, or gives those that an event says.
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

/// Tokens as chats list them.
pub(crate) fn of_chat(model: &Model, tokens: &[TokenEvent]) -> Value {
    json!({ "content": of_response(model, tokens), "refusal": null })
}

/// Tokens as responses list them.
pub(crate) fn of_response(model: &Model, tokens: &[TokenEvent]) -> Value {
    tokens.iter().map(|token| chat_token(model, token)).collect::<Vec<_>>().into()
}

fn chat_token(model: &Model, token: &TokenEvent) -> Value {
    let entry = |id: u32, log_prob: f32| {
        let (text, bytes) = token_text(model, id);
        json!({ "token": text, "logprob": finite(log_prob), "bytes": bytes })
    };
    // Default: a token that a constraint forced was certain.
    let mut value = entry(token.token, token.log_prob.unwrap_or(0.0));
    let top: Vec<Value> = token.top.iter().map(|(id, log_prob)| entry(*id, *log_prob)).collect();
    if let Value::Object(map) = &mut value {
        map.insert("top_logprobs".into(), top.into());
    }
    value
}

/// JSON has no minus infinity; the API says -9999 for what cannot be.
fn finite(log_prob: f32) -> f32 {
    log_prob.max(-9999.0)
}

/// The lists of a completion, which grow with its tokens.
#[derive(Debug, Default)]
pub(crate) struct CompletionLogprobs {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// Adds a token whose text begins after `offset` characters; gives those of its text.
    pub fn add(&mut self, model: &Model, token: &TokenEvent, offset: usize) -> usize {
        let (text, _) = token_text(model, token.token);
        let characters = text.chars().count();
        let mut top = Map::new();
        for (id, log_prob) in &token.top {
            // Of several tokens with one text the likeliest stays.
            top.entry(token_text(model, *id).0).or_insert_with(|| finite(*log_prob).into());
        }
        // Default: only the first token of a prompt has none.
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
