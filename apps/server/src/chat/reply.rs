//! Non-streamed chat responses.

use axum::http::StatusCode;
use axum::response::Response;
use nestling::{Event, GenerationSummary, TokenEvent, ToolCall};
use serde_json::{Value, json};

use crate::answers::{Answers, ChoiceEvent};
use crate::error::{ApiError, json_response};
use crate::logprobs::{PendingTokens, of_chat};
use crate::server::ServedModel;
use crate::usage::{ReplyHead, Totals, finish_reason, timings};

#[derive(Debug, Default)]
struct Answer {
    content: String,
    reasoning: String,
    calls: Vec<ToolCall>,
    unsaid: PendingTokens,
    tokens: Vec<TokenEvent>,
    finished: Option<GenerationSummary>,
}

impl Answer {
    fn take(&mut self, event: Event) {
        let tokens = self.unsaid.take(&event);
        match event {
            Event::Text(text) => {
                self.content.push_str(&text);
                self.tokens.extend(tokens);
            }
            Event::Reasoning(text) => self.reasoning.push_str(&text),
            Event::ToolCall(call) => self.calls.push(call),
            Event::Finished(finished) => self.finished = Some(finished),
            _ => {}
        }
    }

    fn message(&self) -> Value {
        // The content of a message with tool calls only is null.
        let is_said = self.calls.is_empty() || !self.content.is_empty();
        let content = is_said.then_some(&self.content);
        let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
        if let Value::Object(map) = &mut message {
            if !self.reasoning.is_empty() {
                map.insert("reasoning_content".into(), self.reasoning.as_str().into());
            }
            if !self.calls.is_empty() {
                map.insert("tool_calls".into(), json!(self.calls));
            }
        }
        message
    }
}

/// Waits for all choices and returns the response.
///
/// # Errors
/// Returns the first error of a choice.
pub(super) async fn whole(
    served: &ServedModel,
    mut answers: Answers,
    has_logprobs: bool,
) -> Result<Response, ApiError> {
    let mut all: Vec<Answer> = (0..answers.choices).map(|_| Answer::default()).collect();
    while let Some(said) = answers.next().await {
        let ChoiceEvent { choice, event } = said?;
        if let Some(answer) = all.get_mut(choice) {
            answer.take(event);
        }
    }
    let (mut totals, mut times) = (Totals::default(), Value::Null);
    let mut choices = Vec::with_capacity(all.len());
    for (index, answer) in all.iter().enumerate() {
        let finished = answer.finished.as_ref();
        let finished = finished.ok_or_else(|| ApiError::internal("an answer has no end"))?;
        totals.add(finished, answer.unsaid.reasoning, index.is_multiple_of(answers.choices_each));
        if index == 0 {
            times = timings(finished);
        }
        let logprobs = has_logprobs.then(|| of_chat(&served.model, &answer.tokens));
        choices.push(json!({
            "index": index,
            "message": answer.message(),
            "logprobs": logprobs,
            "finish_reason": finish_reason(finished),
        }));
    }
    let mut reply = ReplyHead::new("chatcmpl-", served).object("chat.completion", choices.into());
    if let Value::Object(map) = &mut reply {
        map.insert("usage".into(), totals.to_json());
        map.insert("timings".into(), times);
    }
    Ok(json_response(StatusCode::OK, &reply))
}
