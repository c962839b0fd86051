//! Parsing of completion requests.

use std::sync::Arc;

use nestling::{EngineError, Model};
use serde_json::Value;

use crate::answer_form;
use crate::answers::Job;
use crate::error::ApiError;
use crate::field_rules::{self, COMPLETION};
use crate::fields::Fields;
use crate::limits::{CHOICES_MAX, LOGPROBS_MAX, PROMPTS_MAX};
use crate::prompt::Prompt;
use crate::sampling::{CommonFields, token_limit};
use crate::server::ServedModel;
use crate::tokens::ids;

/// Default of `max_tokens` in the API.
const TOKENS_UNLESS_TOLD: usize = 16;

#[derive(Debug)]
pub(super) struct CompletionRequest {
    pub job: Job,
    pub stream: bool,
    pub include_usage: bool,
    pub has_logprobs: bool,
    /// Prompt texts to be echoed before each completion.
    pub echoes: Vec<String>,
}

impl CompletionRequest {
    /// # Errors
    /// Returns an error for the first field that is missing, unknown, unsupported or invalid.
    pub fn read(mut fields: Fields, served: &ServedModel) -> Result<Self, ApiError> {
        let mut shared = CommonFields::take(&mut fields, served)?;
        let prompts = prompts(fields.require("prompt")?, &served.model)?;
        field_rules::apply(&mut fields, COMPLETION)?;
        let names = ["max_tokens", "n_predict"];
        let is_limited = names.into_iter().any(|name| fields.names(name));
        let max = token_limit(&mut fields, names)?;
        // Default: 16 tokens, as the API specifies.
        shared.options.max_tokens = max.or((!is_limited).then_some(TOKENS_UNLESS_TOLD));
        if fields.peek("logprobs") == Some(&Value::Bool(false)) {
            fields.take("logprobs");
        }
        let top = fields.integer("logprobs", 0..=LOGPROBS_MAX)?;
        shared.options.sampling.top_logprobs = top.and_then(|top| usize::try_from(top).ok());
        // Default: no echo, as the API specifies.
        let echo = fields.flag("echo")?.unwrap_or(false);
        let has_logprobs = top.is_some();
        if echo {
            shared.options.prompt_logprobs = shared.options.sampling.top_logprobs;
        }
        let drawn = fields.integer("best_of", 1..=CHOICES_MAX)?;
        if drawn.is_some_and(|drawn| drawn > shared.choices as u64) {
            return Err(fields.unsupported("best_of", "all answers are returned; use `n`"));
        }
        let form = answer_form::take(&mut fields)?;
        shared.options.constraint = form.map(|form| Arc::new(form.guide) as _);
        fields.end()?;
        let echo_of = |prompt: &Prompt| text_of(prompt, &served.model);
        let echoes = prompts.iter().filter(|_| echo).map(echo_of).collect::<Result<_, _>>()?;
        let (stream, include_usage) = (shared.stream, shared.include_usage);
        let job = Job {
            prompts,
            choices: shared.choices,
            keeps_sessions: shared.keeps_sessions,
            calls_max: None,
            options: shared.options,
            param: "prompt",
        };
        Ok(Self { job, stream, include_usage, has_logprobs, echoes })
    }
}

/// Reads one or several prompts, each a text or a list of token ids.
fn prompts(value: Value, model: &Model) -> Result<Vec<Prompt>, ApiError> {
    let wrong = || {
        ApiError::invalid(
            "prompt",
            "a text, a list of texts, token ids, or a list of those was expected",
        )
    };
    let items = match value {
        Value::String(text) => return Ok(vec![Prompt::Text(text)]),
        Value::Array(items) if !items.is_empty() => items,
        _ => return Err(wrong()),
    };
    if items.iter().all(Value::is_number) {
        return Ok(vec![Prompt::Tokens(ids("prompt", &items, model)?)]);
    }
    if items.len() > PROMPTS_MAX {
        let message = format!("at most {PROMPTS_MAX} prompts, found {}", items.len());
        return Err(ApiError::invalid("prompt", message));
    }
    let are_texts = items.iter().all(Value::is_string);
    let prompts = items.into_iter().enumerate().map(|(index, item)| match item {
        Value::String(text) if are_texts => Ok(Prompt::Text(text)),
        Value::Array(tokens) => {
            Ok(Prompt::Tokens(ids(&format!("prompt[{index}]"), &tokens, model)?))
        }
        _ => Err(wrong()),
    });
    prompts.collect()
}

fn text_of(prompt: &Prompt, model: &Model) -> Result<String, ApiError> {
    match prompt {
        Prompt::Text(text) => Ok(text.clone()),
        Prompt::Tokens(tokens) => {
            let refused = |error: EngineError| ApiError::engine(error, "echo");
            let tokenizer = model.tokenizer().ok_or(EngineError::NoTokenizer).map_err(refused)?;
            tokenizer.decode(tokens, true).map_err(|error| refused(EngineError::text(error)))
        }
        Prompt::Conversation(_) => Err(ApiError::internal("a completion has no messages")),
    }
}
