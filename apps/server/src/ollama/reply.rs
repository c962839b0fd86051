//! Reply objects of Ollama's API.

use std::time::{Duration, Instant, SystemTime};

use axum::http::StatusCode;
use axum::response::Response;
use nestling::{Event, FinishReason, GenerationSummary, ToolCall};
use serde_json::{Map, Value, json};

use super::time::{nanoseconds, written};
use crate::answers::Answers;
use crate::error::{ApiError, json_response};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Chat,
    Generate,
}

#[derive(Debug, Default)]
struct Piece {
    content: String,
    thinking: String,
    calls: Vec<Value>,
}

impl Piece {
    fn is_empty(&self) -> bool {
        self.content.is_empty() && self.thinking.is_empty() && self.calls.is_empty()
    }

    fn take(&mut self, event: Event, kind: Kind) {
        match event {
            Event::Text(text) => self.content.push_str(&text),
            Event::Reasoning(text) => self.thinking.push_str(&text),
            Event::ToolCall(call) if kind == Kind::Chat && call.arguments.is_object() => {
                let ToolCall { name, arguments, .. } = call;
                self.calls.push(json!({ "function": { "name": name, "arguments": arguments } }));
            }
            // Calls that this API cannot represent are returned as text.
            Event::ToolCall(call) => self.content.push_str(&call.arguments_text()),
            _ => {}
        }
    }
}

/// Formats the events of one generation.
#[derive(Debug)]
pub(super) struct Writer {
    kind: Kind,
    model: String,
    started: Instant,
    /// Time until the model was loaded.
    loaded: Duration,
}

impl Writer {
    pub fn new(kind: Kind, model: String, started: Instant, loaded: Duration) -> Self {
        Self { kind, model, started, loaded }
    }

    fn object(&self, piece: Piece) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("model".into(), self.model.as_str().into());
        map.insert("created_at".into(), written(SystemTime::now()).into());
        let Piece { content, thinking, calls } = piece;
        match self.kind {
            Kind::Generate => {
                map.insert("response".into(), content.into());
                if !thinking.is_empty() {
                    map.insert("thinking".into(), thinking.into());
                }
            }
            Kind::Chat => {
                let mut message = Map::new();
                message.insert("role".into(), "assistant".into());
                message.insert("content".into(), content.into());
                if !thinking.is_empty() {
                    message.insert("thinking".into(), thinking.into());
                }
                if !calls.is_empty() {
                    message.insert("tool_calls".into(), calls.into());
                }
                map.insert("message".into(), message.into());
            }
        }
        map.insert("done".into(), false.into());
        map
    }

    /// Returns the object for an event, or `None` if it has no output.
    pub fn said(&self, event: Event) -> Option<Value> {
        if let Event::Finished(finished) = &event {
            return Some(self.end(Piece::default(), finished));
        }
        let mut piece = Piece::default();
        piece.take(event, self.kind);
        (!piece.is_empty()).then(|| self.object(piece).into())
    }

    fn end(&self, piece: Piece, finished: &GenerationSummary) -> Value {
        let (usage, stats) = (&finished.usage, &finished.stats);
        let mut map = self.object(piece);
        let reason = match finished.reason {
            FinishReason::Stop | FinishReason::ToolCalls => "stop",
            _ => "length",
        };
        let of_seconds = |seconds: f64| nanoseconds(Duration::from_secs_f64(seconds.max(0.0)));
        map.insert("done".into(), true.into());
        map.insert("done_reason".into(), reason.into());
        map.insert("total_duration".into(), nanoseconds(self.started.elapsed()).into());
        map.insert("load_duration".into(), nanoseconds(self.loaded).into());
        map.insert("prompt_eval_count".into(), usage.prompt_tokens.into());
        map.insert("prompt_eval_duration".into(), of_seconds(stats.prompt_seconds).into());
        map.insert("eval_count".into(), usage.completion_tokens.into());
        map.insert("eval_duration".into(), of_seconds(stats.decode_seconds).into());
        map.into()
    }

    /// Returns the reply to a request without a prompt.
    pub fn without_answer(&self, reason: &str) -> Value {
        let mut map = self.object(Piece::default());
        map.insert("done".into(), true.into());
        map.insert("done_reason".into(), reason.into());
        map.into()
    }

    /// Waits for the whole completion and returns the response.
    ///
    /// # Errors
    /// Returns the error of the generation.
    pub async fn whole(self, mut answers: Answers) -> Result<Response, ApiError> {
        let mut piece = Piece::default();
        let mut finished = None;
        while let Some(said) = answers.next().await {
            match said?.event {
                Event::Finished(end) => finished = Some(end),
                event => piece.take(event, self.kind),
            }
        }
        let finished = finished.ok_or_else(|| ApiError::internal("an answer has no end"))?;
        Ok(json_response(StatusCode::OK, &self.end(piece, &finished)))
    }
}
