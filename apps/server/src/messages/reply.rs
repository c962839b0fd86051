//! Reply objects of Anthropic's API.

use nestling::{FinishReason, GenerationSummary};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::parts::{Kind, Part, Parts};
use crate::server::ServedModel;
use crate::usage::random;

/// Field for arguments that are not a JSON object, as recommended by the API's documentation.
const NO_OBJECT: &str = "INVALID_JSON";

/// Fields common to all parts of a reply.
#[derive(Clone, Debug)]
pub(super) struct Head {
    id: String,
    model: String,
    stops: Vec<String>,
}

impl Head {
    pub fn new(served: &ServedModel, stops: Vec<String>) -> Self {
        let id = format!("msg_{:016x}{:016x}", random(), random());
        Self { id, model: served.id.clone(), stops }
    }

    /// Returns a message without content, for the start of a stream.
    pub fn empty(&self, prompt_tokens: usize) -> Value {
        // The number of cached tokens is only known at the end.
        let usage = json!({
            "input_tokens": prompt_tokens, "cache_read_input_tokens": null,
            "cache_creation_input_tokens": null, "output_tokens": 0,
        });
        self.object(Vec::new(), &json!({ "stop_reason": null, "stop_sequence": null }), &usage)
    }

    /// Returns a complete message.
    ///
    /// # Errors
    /// An internal error if the completion has not ended.
    pub fn message(&self, parts: &Parts) -> Result<Value, ApiError> {
        let finished = parts.end()?;
        let content = parts.list.iter().map(|part| block(part, true)).collect();
        Ok(self.object(content, &self.stop(finished), &usage(finished, parts.reasoning_tokens())))
    }

    fn object(&self, content: Vec<Value>, stop: &Value, usage: &Value) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": stop["stop_reason"],
            "stop_sequence": stop["stop_sequence"], "usage": usage,
        })
    }

    /// Returns the fields that describe why the message ended.
    pub fn stop(&self, finished: &GenerationSummary) -> Value {
        let is_stop = finished.reason == FinishReason::Stop;
        let found = finished.stop.filter(|_| is_stop).and_then(|index| self.stops.get(index));
        let reason = match finished.reason {
            FinishReason::Stop if found.is_some() => "stop_sequence",
            FinishReason::Stop => "end_turn",
            FinishReason::ToolCalls => "tool_use",
            FinishReason::ContextFull => "model_context_window_exceeded",
            _ => "max_tokens",
        };
        json!({ "stop_reason": reason, "stop_sequence": found })
    }
}

/// Returns the token usage. Cache writes are reported as 0: prompts are always cached, without extra cost.
pub(super) fn usage(finished: &GenerationSummary, reasoning: usize) -> Value {
    let usage = &finished.usage;
    json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(usage.cached_tokens),
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "thinking_tokens": reasoning },
    })
}

/// Returns a content block; an empty one unless `is_whole`.
pub(super) fn block(part: &Part, is_whole: bool) -> Value {
    let text = if is_whole { part.text.as_str() } else { "" };
    match &part.kind {
        // Reasoning is not signed.
        Kind::Reasoning => json!({ "type": "thinking", "thinking": text, "signature": "" }),
        Kind::Text => json!({ "type": "text", "text": text, "citations": null }),
        Kind::Call { id, name, arguments } => {
            let input = match arguments {
                _ if !is_whole => json!({}),
                Some(Value::Object(arguments)) => json!(arguments),
                _ => json!({ NO_OBJECT: text }),
            };
            json!({ "type": "tool_use", "id": id, "name": name, "input": input })
        }
    }
}
