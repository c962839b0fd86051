//! Non-streamed completion responses.

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::{Choices, Progress};
use crate::answers::{Answers, ChoiceEvent};
use crate::error::{ApiError, json_response};
use crate::usage::{ReplyHead, Totals, finish_reason, timings};

/// Waits for all choices and returns the response.
///
/// # Errors
/// Returns the first error of a choice.
pub(super) async fn whole(choices: &Choices, mut answers: Answers) -> Result<Response, ApiError> {
    let begin = |index: usize| {
        let echo = choices.echo(index);
        (echo.to_owned(), Progress::after(echo, choices.has_logprobs))
    };
    let mut all: Vec<(String, Progress)> = (0..answers.choices).map(begin).collect();
    while let Some(said) = answers.next().await {
        let ChoiceEvent { choice, event } = said?;
        if let Some((text, progress)) = all.get_mut(choice) {
            text.push_str(&progress.take(event));
        }
    }
    let (mut totals, mut times) = (Totals::default(), Value::Null);
    let mut list = Vec::with_capacity(all.len());
    for (index, (text, mut progress)) in all.into_iter().enumerate() {
        let finished = progress.finished.take();
        let finished = finished.ok_or_else(|| ApiError::internal("an answer has no end"))?;
        totals.add(&finished, 0, index.is_multiple_of(choices.each));
        if index == 0 {
            times = timings(&finished);
        }
        let logprobs = choices.has_logprobs.then(|| progress.logprobs(&choices.served));
        list.push(json!({
            "index": index, "text": text, "logprobs": logprobs,
            "finish_reason": finish_reason(&finished),
        }));
    }
    let mut reply = ReplyHead::new("cmpl-", &choices.served).object("text_completion", list.into());
    if let Value::Object(map) = &mut reply {
        map.insert("usage".into(), totals.to_json());
        map.insert("timings".into(), times);
    }
    Ok(json_response(StatusCode::OK, &reply))
}
