//! Reply metadata: ids, token usage and timings.

use std::hash::{BuildHasher, Hasher, RandomState};

use nestling::{FinishReason, GenerationSummary};
use serde_json::{Value, json};

use crate::server::{ServedModel, unix_seconds};

/// Fields common to all chunks of a reply.
#[derive(Clone, Debug)]
pub(crate) struct ReplyHead {
    pub id: String,
    pub created: u64,
    pub model: String,
    pub fingerprint: String,
}

impl ReplyHead {
    pub fn new(prefix: &str, served: &ServedModel) -> Self {
        let id = format!("{prefix}{:016x}{:016x}", random(), random());
        let (model, fingerprint) = (served.id.clone(), served.fingerprint.clone());
        Self { id, created: unix_seconds(), model, fingerprint }
    }

    /// Returns an object of the reply with the given choices.
    pub fn object(&self, kind: &str, choices: Value) -> Value {
        json!({
            "id": self.id, "object": kind, "created": self.created, "model": self.model,
            "system_fingerprint": self.fingerprint, "choices": choices,
        })
    }
}

/// Returns a random number for ids. It is not cryptographically secure.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

pub(crate) fn finish_reason(finished: &GenerationSummary) -> &'static str {
    match finished.reason {
        FinishReason::Stop => "stop",
        FinishReason::ToolCalls => "tool_calls",
        _ => "length",
    }
}

/// Token totals of all choices of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    prompt: usize,
    cached: usize,
    completion: usize,
    reasoning: usize,
}

impl Totals {
    /// Adds a choice, and its prompt if it is the prompt's first choice.
    pub fn add(&mut self, finished: &GenerationSummary, reasoning: usize, first: bool) {
        let usage = &finished.usage;
        if first {
            self.prompt += usage.prompt_tokens;
            self.cached += usage.cached_tokens;
        }
        self.completion += usage.completion_tokens;
        self.reasoning += reasoning;
    }

    pub fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": { "cached_tokens": self.cached },
            "completion_tokens_details": { "reasoning_tokens": self.reasoning },
        })
    }
}

/// Returns the timings of a generation, with the field names of llama.cpp's server.
pub(crate) fn timings(finished: &GenerationSummary) -> Value {
    let (usage, stats) = (&finished.usage, &finished.stats);
    json!({
        "cache_n": usage.cached_tokens,
        "prompt_n": stats.prompt_tokens,
        "prompt_ms": stats.prompt_seconds * 1e3,
        "prompt_per_second": stats.prompt_tokens_per_second(),
        "predicted_n": usage.completion_tokens,
        "predicted_ms": stats.decode_seconds * 1e3,
        "predicted_per_second": stats.decode_tokens_per_second(),
        "time_to_first_token_ms": stats.time_to_first_token_seconds * 1e3,
    })
}
