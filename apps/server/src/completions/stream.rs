//! Streamed completion responses.

use nestling::GenerationSummary;
use serde_json::{Value, json};

use super::{Choices, Progress};
use crate::answers::{Answers, ChoiceEvent};
use crate::events::{Frames, StreamFormat};
use crate::usage::{ReplyHead, Totals, finish_reason, timings};

pub(super) struct CompletionStream {
    choices: Choices,
    head: ReplyHead,
    all: Vec<Progress>,
    include_usage: bool,
    totals: Totals,
}

impl CompletionStream {
    pub fn new(choices: Choices, answers: &Answers, include_usage: bool) -> Self {
        let begin = |index: usize| Progress::after(choices.echo(index), choices.has_logprobs);
        let all = (0..answers.choices).map(begin).collect();
        let head = ReplyHead::new("cmpl-", &choices.served);
        Self { choices, head, all, include_usage, totals: Totals::default() }
    }

    fn object(&self, list: Value) -> Value {
        let mut object = self.head.object("text_completion", list);
        if let (true, Value::Object(map)) = (self.include_usage, &mut object) {
            map.insert("usage".into(), Value::Null);
        }
        object
    }

    fn part(&mut self, index: usize, text: &str, finished: Option<&GenerationSummary>) -> Value {
        let has_logprobs = self.choices.has_logprobs;
        let logprobs = match self.all.get_mut(index) {
            Some(progress) if has_logprobs && !progress.tokens.is_empty() => {
                progress.logprobs(&self.choices.served)
            }
            _ => Value::Null,
        };
        self.object(json!([{
            "index": index, "text": text, "logprobs": logprobs,
            "finish_reason": finished.map(finish_reason),
        }]))
    }
}

impl StreamFormat for CompletionStream {
    fn begin(&mut self, out: &mut Frames) {
        for index in 0..self.all.len() {
            let echo = self.choices.echo(index).to_owned();
            if !echo.is_empty() {
                out.data(&self.part(index, &echo, None));
            }
        }
    }

    fn write_event(&mut self, said: ChoiceEvent, out: &mut Frames) {
        let index = said.choice;
        // Default: each choice has an entry.
        let Some(progress) = self.all.get_mut(index) else { return };
        let text = progress.take(said.event);
        let finished = progress.finished.take();
        if text.is_empty() && finished.is_none() {
            return;
        }
        let mut object = self.part(index, &text, finished.as_ref());
        if let (Some(finished), Value::Object(map)) = (&finished, &mut object) {
            self.totals.add(finished, 0, index.is_multiple_of(self.choices.each));
            map.insert("timings".into(), timings(finished));
        }
        out.data(&object);
    }

    fn end(&mut self, out: &mut Frames) {
        if self.include_usage {
            let mut object = self.object(json!([]));
            if let Value::Object(map) = &mut object {
                map.insert("usage".into(), self.totals.to_json());
            }
            out.data(&object);
        }
        out.done();
    }
}
