//! Streamed replies of Anthropic's API.

use serde_json::{Value, json};

use super::error::to_json;
use super::reply::{Head, block, usage};
use crate::answers::{Answers, ChoiceEvent};
use crate::error::ApiError;
use crate::events::{Frames, StreamFormat};
use crate::parts::{Kind, Part, Parts, Step};

pub(super) struct MessageStream {
    head: Head,
    prompt_tokens: usize,
    parts: Parts,
}

impl MessageStream {
    pub fn new(head: Head, answers: &Answers) -> Self {
        Self { head, prompt_tokens: answers.prompt_tokens, parts: Parts::default() }
    }
}

/// Writes an event whose name equals its type.
fn write(out: &mut Frames, kind: &str, mut event: Value) {
    if let Value::Object(map) = &mut event {
        map.shift_insert(0, "type".into(), kind.into());
    }
    out.event(kind, &event);
}

fn tell(out: &mut Frames, part: &Part, index: usize, step: Step) {
    match step {
        Step::Open => {
            let event = json!({ "index": index, "content_block": block(part, false) });
            write(out, "content_block_start", event);
        }
        Step::Add(text, _) => {
            let delta = match part.kind {
                Kind::Reasoning => json!({ "type": "thinking_delta", "thinking": text }),
                Kind::Text => json!({ "type": "text_delta", "text": text }),
                Kind::Call { .. } => json!({ "type": "input_json_delta", "partial_json": text }),
            };
            write(out, "content_block_delta", json!({ "index": index, "delta": delta }));
        }
        Step::Close => write(out, "content_block_stop", json!({ "index": index })),
    }
}

impl StreamFormat for MessageStream {
    fn begin(&mut self, out: &mut Frames) {
        write(out, "message_start", json!({ "message": self.head.empty(self.prompt_tokens) }));
        self.ping(out);
    }

    fn write_event(&mut self, said: ChoiceEvent, out: &mut Frames) {
        self.parts.take(said.event, &mut |part, index, step| tell(out, part, index, step));
        if let Some(finished) = &self.parts.finished {
            let usage = usage(finished, self.parts.reasoning_tokens());
            let event = json!({ "delta": self.head.stop(finished), "usage": usage });
            write(out, "message_delta", event);
        }
    }

    fn end(&mut self, out: &mut Frames) {
        write(out, "message_stop", json!({}));
    }

    fn failed(&mut self, error: &ApiError, out: &mut Frames) {
        out.event("error", &to_json(error, None));
    }

    fn ping(&mut self, out: &mut Frames) {
        write(out, "ping", json!({}));
    }
}
