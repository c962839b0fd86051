//! Parsing of chat requests.

use nestling::Model;
use serde_json::{Map, Value};

use super::{messages, tools};
use crate::answer_form;
use crate::answers::Job;
use crate::conversation::ConversationFields;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{NAME_BYTES_MAX, TOP_LOGPROBS_MAX};
use crate::prompt::Prompt;
use crate::reasoning::{self, EFFORTS};
use crate::sampling::{CommonFields, tokens_max};
use crate::server::ServedModel;

/// Template variables that are set through other request fields.
const OWN_VARIABLES: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

#[derive(Debug)]
pub(super) struct ChatRequest {
    pub job: Job,
    pub stream: bool,
    pub include_usage: bool,
    pub has_logprobs: bool,
}

impl ChatRequest {
    /// # Errors
    /// Returns an error for the first field that is missing, unknown, unsupported or invalid.
    pub fn read(mut fields: Fields, served: &ServedModel) -> Result<Self, ApiError> {
        let model = &served.model;
        let mut shared = CommonFields::take(&mut fields, served)?;
        let messages = messages::take(&mut fields)?;
        let tools = tools::take(&mut fields, model)?;
        let form = answer_form::take(&mut fields)?;
        shared.sampling.top_logprobs = top_logprobs(&mut fields)?;
        shared.options.max_tokens = answer_tokens(&mut fields)?;
        let arguments = template_arguments(&mut fields, model)?;
        fields.end()?;
        let calls_max = tools.calls_max();
        let asked =
            ConversationFields { messages, tools, form, form_place: "response_format", arguments };
        let conversation = asked.conversation(&mut shared.options)?;
        let (stream, include_usage) = (shared.stream, shared.include_usage);
        let has_logprobs = shared.sampling.top_logprobs.is_some();
        let job = Job {
            prompts: vec![Prompt::Conversation(Box::new(conversation))],
            choices: shared.choices,
            keeps_sessions: shared.keeps_sessions,
            calls_max,
            options: shared.into_options(),
            param: "messages",
        };
        Ok(Self { job, stream, include_usage, has_logprobs })
    }
}

fn top_logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    // Default: no log-probabilities, as the API specifies.
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=TOP_LOGPROBS_MAX)?;
    if top.is_some() && !wanted {
        return Err(fields.invalid("top_logprobs", "`logprobs` must be true with it"));
    }
    // Default: only the log-probability of the sampled token.
    let top = usize::try_from(top.unwrap_or(0)).unwrap_or(0);
    Ok(wanted.then_some(top))
}

/// Reads the token limit under its deprecated and its current name.
fn answer_tokens(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let old = tokens_max(fields, "max_tokens", 1)?;
    let new = tokens_max(fields, "max_completion_tokens", 1)?;
    match (old, new) {
        (Some(old), Some(new)) if old != new => {
            let message = format!("`max_tokens` is {old}, but `max_completion_tokens` is {new}");
            Err(fields.invalid("max_tokens", message))
        }
        _ => Ok(new.or(old)),
    }
}

fn template_arguments(fields: &mut Fields, model: &Model) -> Result<Map<String, Value>, ApiError> {
    let knows = |name: &str| reasoning::knows(model, name);
    let mut arguments = Map::new();
    let name = "chat_template_kwargs";
    match fields.take(name) {
        None => {}
        Some(Value::Object(map)) => {
            let foreign = |name: &&String| OWN_VARIABLES.contains(&name.as_str()) || !knows(name);
            if let Some(foreign) = map.keys().find(foreign) {
                let place = format!("{name}.{foreign}");
                let message = "the chat template of this model has no such variable to set";
                return Err(fields.unsupported(&place, message));
            }
            arguments = map;
        }
        Some(_) => return Err(fields.invalid(name, "an object was expected")),
    }
    let name = "reasoning_effort";
    let Some(effort) = fields.text(name, NAME_BYTES_MAX)? else { return Ok(arguments) };
    if !EFFORTS.contains(&effort.as_str()) {
        return Err(fields.invalid(name, format!("one of {} was expected", EFFORTS.join(", "))));
    }
    if !reasoning::set_effort(&mut arguments, model, &effort) {
        let message = "the chat template of this model has no option for the reasoning effort";
        return Err(fields.unsupported(name, message));
    }
    Ok(arguments)
}
