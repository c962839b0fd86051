//! Streamed replies of the Responses API.

use std::sync::Arc;

use nestling::{Event, TokenEvent};
use serde_json::{Value, json};

use super::reply::{Ids, Reply, Status, is_cut};
use crate::answers::ChoiceEvent;
use crate::error::ApiError;
use crate::events::{Frames, StreamFormat};
use crate::parts::{Kind, Part, Parts, Step};
use crate::server::ServedModel;

pub(super) struct ResponseStream {
    parts: Parts,
    writer: Writer,
}

impl ResponseStream {
    pub fn new(served: Arc<ServedModel>, reply: Reply) -> Self {
        let writer = Writer { served, reply, ids: Ids::default(), number: 0 };
        Self { parts: Parts::default(), writer }
    }
}

impl StreamFormat for ResponseStream {
    fn begin(&mut self, out: &mut Frames) {
        for kind in ["response.created", "response.in_progress"] {
            let event = json!({ "response": self.writer.reply.initial() });
            self.writer.write(out, kind, event);
        }
    }

    fn write_event(&mut self, said: ChoiceEvent, out: &mut Frames) {
        let writer = &mut self.writer;
        // Only the end of a truncated response marks the closed item as incomplete.
        let cut = matches!(&said.event, Event::Finished(finished) if is_cut(finished));
        self.parts.take(said.event, &mut |part, index, step| match step {
            Step::Open => writer.open(out, part, index),
            Step::Add(text, tokens) => writer.add(out, part, index, &text, &tokens),
            Step::Close => writer.close(out, part, index, cut),
        });
    }

    fn end(&mut self, out: &mut Frames) {
        let Writer { served, reply, ids, .. } = &self.writer;
        match reply.finish(served, &self.parts, ids) {
            Ok(response) => {
                let is_cut = self.parts.finished.as_ref().is_some_and(is_cut);
                let kind = if is_cut { "response.incomplete" } else { "response.completed" };
                self.writer.write(out, kind, json!({ "response": response }));
            }
            Err(error) => self.failed(&error, out),
        }
    }

    fn failed(&mut self, error: &ApiError, out: &mut Frames) {
        let event = json!({ "response": self.writer.reply.failed(error) });
        self.writer.write(out, "response.failed", event);
    }
}

struct Writer {
    served: Arc<ServedModel>,
    reply: Reply,
    ids: Ids,
    number: u64,
}

impl Writer {
    /// Writes an event whose name equals its type.
    fn write(&mut self, out: &mut Frames, kind: &str, mut event: Value) {
        if let Value::Object(map) = &mut event {
            map.shift_insert(0, "type".into(), kind.into());
            map.insert("sequence_number".into(), self.number.into());
        }
        self.number += 1;
        out.event(kind, &event);
    }

    /// Returns the fields that locate an item in the response.
    fn place(&mut self, part: &Part, index: usize) -> Value {
        let place = json!({ "item_id": self.ids.of(part, index), "output_index": index });
        if is_call(part) { place } else { with(place, "content_index", 0.into()) }
    }

    fn open(&mut self, out: &mut Frames, part: &Part, index: usize) {
        let id = self.ids.of(part, index);
        let item = self.reply.item(&self.served.model, part, id, Status::InProgress);
        let event = json!({ "output_index": index, "item": item });
        self.write(out, "response.output_item.added", event);
        if !is_call(part) {
            let content = self.reply.content(&self.served.model, part);
            let event = with(self.place(part, index), "part", content);
            self.write(out, "response.content_part.added", event);
        }
    }

    fn add(
        &mut self,
        out: &mut Frames,
        part: &Part,
        index: usize,
        text: &str,
        tokens: &[TokenEvent],
    ) {
        // The input of a custom tool is known once its JSON is whole.
        if self.reply.is_custom(part) {
            return;
        }
        let event = with(self.place(part, index), "delta", text.into());
        let event = self.with_logprobs(event, part, tokens);
        self.write(out, &format!("response.{}.delta", event_prefix(part)), event);
    }

    fn close(&mut self, out: &mut Frames, part: &Part, index: usize, cut: bool) {
        self.write_text_end(out, part, index);
        if !is_call(part) {
            let content = self.reply.content(&self.served.model, part);
            let event = with(self.place(part, index), "part", content);
            self.write(out, "response.content_part.done", event);
        }
        let status = Status::of(part, cut);
        let id = self.ids.of(part, index);
        let item = self.reply.item(&self.served.model, part, id, status);
        self.write(
            out,
            "response.output_item.done",
            json!({ "output_index": index, "item": item }),
        );
    }

    fn write_text_end(&mut self, out: &mut Frames, part: &Part, index: usize) {
        let (place, text) = (self.place(part, index), part.text.as_str().into());
        let event = match &part.kind {
            Kind::Call { .. } if self.reply.is_custom(part) => {
                let input = Value::from(self.reply.custom_input(part));
                let kind = "response.custom_tool_call_input";
                self.write(
                    out,
                    &format!("{kind}.delta"),
                    with(place.clone(), "delta", input.clone()),
                );
                self.write(out, &format!("{kind}.done"), with(place, "input", input));
                return;
            }
            Kind::Call { name, .. } => {
                with(with(place, "name", name.as_str().into()), "arguments", text)
            }
            _ => self.with_logprobs(with(place, "text", text), part, &part.tokens),
        };
        self.write(out, &format!("response.{}.done", event_prefix(part)), event);
    }

    /// Adds the log-probabilities of the tokens to an event about text.
    fn with_logprobs(&self, event: Value, part: &Part, tokens: &[TokenEvent]) -> Value {
        match part.kind {
            Kind::Text => with(event, "logprobs", self.reply.logprobs(&self.served.model, tokens)),
            _ => event,
        }
    }
}

fn is_call(part: &Part) -> bool {
    matches!(part.kind, Kind::Call { .. })
}

/// Returns the event prefix for the text of an item.
fn event_prefix(part: &Part) -> &'static str {
    match part.kind {
        Kind::Reasoning => "reasoning_text",
        Kind::Text => "output_text",
        Kind::Call { .. } => "function_call_arguments",
    }
}

fn with(mut object: Value, name: &str, value: Value) -> Value {
    if let Value::Object(map) = &mut object {
        map.insert(name.into(), value);
    }
    object
}
