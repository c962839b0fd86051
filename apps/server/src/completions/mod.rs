//! `POST /v1/completions`.

mod reply;
mod request;
mod stream;

use std::sync::Arc;

use axum::response::Response;
use nestling::{Event, GenerationSummary, TokenEvent};
use serde_json::Value;

use crate::access::Caller;
use crate::answers;
use crate::error::ApiError;
use crate::events;
use crate::fields::Fields;
use crate::logprobs::CompletionLogprobs;
use crate::server::ServedModel;
use request::CompletionRequest;

/// # Errors
/// Returns an error if the request is invalid or its generation cannot start.
pub(crate) async fn complete(
    served: Arc<ServedModel>,
    fields: Fields,
    caller: Caller,
) -> Result<Response, ApiError> {
    let (request, slot) =
        served.read(move |served| CompletionRequest::read(fields, served)).await?;
    let CompletionRequest { job, stream, include_usage, has_logprobs, echoes } = request;
    let answers = answers::start(&served, job, slot, &caller).await?;
    let choices = Choices { served, has_logprobs, echoes, each: answers.choices_each };
    if stream {
        let form = stream::CompletionStream::new(choices, &answers, include_usage);
        return Ok(events::response(answers, form));
    }
    reply::whole(&choices, answers).await
}

/// Data common to all choices of a request.
struct Choices {
    served: Arc<ServedModel>,
    has_logprobs: bool,
    /// Prompt texts to be echoed before each completion.
    echoes: Vec<String>,
    /// Number of choices per prompt.
    each: usize,
}

impl Choices {
    fn echo(&self, choice: usize) -> &str {
        // Default: no echo.
        self.echoes.get(choice / self.each.max(1)).map_or("", String::as_str)
    }
}

#[derive(Debug, Default)]
struct Progress {
    tokens: Vec<TokenEvent>,
    /// Character offset of the next token's text.
    offset: usize,
    finished: Option<GenerationSummary>,
}

impl Progress {
    /// Creates the state of a choice. With log-probabilities, prompt tokens are reported as token events;
    /// otherwise the offset starts after `echo`.
    fn after(echo: &str, has_logprobs: bool) -> Self {
        let offset = if has_logprobs { 0 } else { echo.chars().count() };
        Self { offset, ..Self::default() }
    }

    fn take(&mut self, event: Event) -> String {
        match event {
            Event::PromptToken(token) | Event::Token(token) => self.tokens.push(token),
            // Completions have no separate reasoning field.
            Event::Text(text) | Event::Reasoning(text) => return text,
            Event::Finished(finished) => self.finished = Some(finished),
            _ => {}
        }
        String::new()
    }

    /// Returns the log-probabilities of the pending tokens and clears them.
    fn logprobs(&mut self, served: &ServedModel) -> Value {
        let mut lists = CompletionLogprobs::default();
        for token in std::mem::take(&mut self.tokens) {
            self.offset += lists.add(&served.model, &token, self.offset);
        }
        lists.into_json()
    }
}
