//! `POST /v1/completions`.

mod reply;
mod request;
mod stream;

use std::sync::Arc;

use axum::response::Response;
use nestling::{Event, Finished, TokenEvent};
use serde_json::Value;

use crate::access::Caller;
use crate::answers;
use crate::error::ApiError;
use crate::events;
use crate::fields::Fields;
use crate::logprobs::CompletionLogprobs;
use crate::server::Served;
use request::CompletionRequest;

/// # Errors
/// What is wrong with the request; what the engine says before there is an answer.
pub(crate) async fn complete(
    served: Arc<Served>,
    fields: Fields,
    caller: Caller,
) -> Result<Response, ApiError> {
    let request = served.read(move |served| CompletionRequest::read(fields, served)).await?;
    let CompletionRequest { job, stream, include_usage, has_logprobs, echoes } = request;
    let answers = answers::start(&served, job, &caller).await?;
    let choices = Choices { served, has_logprobs, echoes, each: answers.choices_each };
    if stream {
        let form = stream::CompletionStream::new(choices, &answers, include_usage);
        return Ok(events::response(answers, form));
    }
    reply::whole(&choices, answers).await
}

/// What all answers to a request have in common.
struct Choices {
    served: Arc<Served>,
    has_logprobs: bool,
    /// The texts of the prompts, where answers begin with them.
    echoes: Vec<String>,
    /// Answers to each prompt.
    each: usize,
}

impl Choices {
    fn echo(&self, choice: usize) -> &str {
        // Default: nothing is echoed.
        self.echoes.get(choice / self.each.max(1)).map_or("", String::as_str)
    }
}

/// A piece of an answer that is on its way.
#[derive(Debug, Default)]
struct Progress {
    tokens: Vec<TokenEvent>,
    /// Where the text of the next token begins, in characters.
    offset: usize,
    finished: Option<Finished>,
}

impl Progress {
    /// Of an answer that begins with `echo`, whose tokens are told only with log-probabilities.
    fn after(echo: &str, has_logprobs: bool) -> Self {
        let offset = if has_logprobs { 0 } else { echo.chars().count() };
        Self { offset, ..Self::default() }
    }

    /// Takes an event; the text that it adds.
    fn take(&mut self, event: Event) -> String {
        match event {
            Event::PromptToken(token) | Event::Token(token) => self.tokens.push(token),
            // A prompt without messages has no reasoning that would be apart.
            Event::Text(text) | Event::Reasoning(text) => return text,
            Event::Finished(finished) => self.finished = Some(finished),
            _ => {}
        }
        String::new()
    }

    /// The log-probabilities of the tokens since the last call.
    fn logprobs(&mut self, served: &Served) -> Value {
        let mut lists = CompletionLogprobs::default();
        for token in std::mem::take(&mut self.tokens) {
            self.offset += lists.add(&served.model, &token, self.offset);
        }
        lists.into_json()
    }
}
