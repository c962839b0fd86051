//! Streamed chat responses.

use std::sync::Arc;

use nestling::{Event, TokenEvent};
use serde_json::{Value, json};

use crate::answers::{Answers, ChoiceEvent};
use crate::events::{Frames, StreamFormat};
use crate::logprobs::{PendingTokens, of_chat};
use crate::server::ServedModel;
use crate::usage::{ReplyHead, Totals, finish_reason, timings};

const KIND: &str = "chat.completion.chunk";

pub(super) struct ChatStream {
    served: Arc<ServedModel>,
    head: ReplyHead,
    answers: Vec<Answer>,
    choices_each: usize,
    include_usage: bool,
    has_logprobs: bool,
    totals: Totals,
}

#[derive(Debug, Default)]
struct Answer {
    unsaid: PendingTokens,
}

impl ChatStream {
    pub fn new(
        served: Arc<ServedModel>,
        answers: &Answers,
        include_usage: bool,
        has_logprobs: bool,
    ) -> Self {
        Self {
            head: ReplyHead::new("chatcmpl-", &served),
            served,
            answers: (0..answers.choices).map(|_| Answer::default()).collect(),
            choices_each: answers.choices_each,
            include_usage,
            has_logprobs,
            totals: Totals::default(),
        }
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = self.head.object(KIND, choices);
        if let (true, Value::Object(map)) = (self.include_usage, &mut chunk) {
            map.insert("usage".into(), Value::Null);
        }
        chunk
    }

    fn part(&self, index: usize, delta: Value, tokens: &[TokenEvent]) -> Value {
        let has_logprobs = self.has_logprobs && !tokens.is_empty();
        let logprobs = has_logprobs.then(|| of_chat(&self.served.model, tokens));
        self.chunk(json!([{
            "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": null,
        }]))
    }
}

impl StreamFormat for ChatStream {
    fn begin(&mut self, out: &mut Frames) {
        for index in 0..self.answers.len() {
            out.data(&self.part(index, json!({ "role": "assistant", "content": "" }), &[]));
        }
    }

    fn write_event(&mut self, said: ChoiceEvent, out: &mut Frames) {
        let ChoiceEvent { choice, event } = said;
        // Default: each choice has an entry.
        let Some(answer) = self.answers.get_mut(choice) else { return };
        let tokens = answer.unsaid.take(&event);
        match event {
            Event::Text(text) => {
                out.data(&self.part(choice, json!({ "content": text }), &tokens));
            }
            Event::Reasoning(text) => {
                out.data(&self.part(choice, json!({ "reasoning_content": text }), &[]));
            }
            Event::ToolCallStart { index, id, name } => {
                let call = json!({
                    "index": index, "id": id, "type": "function",
                    "function": { "name": name, "arguments": "" },
                });
                out.data(&self.part(choice, json!({ "tool_calls": [call] }), &[]));
            }
            Event::ToolCallArguments { index, delta } => {
                let call = json!({ "index": index, "function": { "arguments": delta } });
                out.data(&self.part(choice, json!({ "tool_calls": [call] }), &[]));
            }
            Event::Finished(finished) => {
                let first = choice.is_multiple_of(self.choices_each);
                self.totals.add(&finished, answer.unsaid.reasoning, first);
                let mut chunk = self.chunk(json!([{
                    "index": choice, "delta": {}, "logprobs": null,
                    "finish_reason": finish_reason(&finished),
                }]));
                if let Value::Object(map) = &mut chunk {
                    map.insert("timings".into(), timings(&finished));
                }
                out.data(&chunk);
            }
            _ => {}
        }
    }

    fn end(&mut self, out: &mut Frames) {
        if self.include_usage {
            let mut chunk = self.chunk(json!([]));
            if let Value::Object(map) = &mut chunk {
                map.insert("usage".into(), self.totals.to_json());
            }
            out.data(&chunk);
        }
        out.done();
    }
}
