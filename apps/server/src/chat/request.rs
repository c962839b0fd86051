//! Parsing of chat requests.

use nestling::Model;
use serde_json::{Map, Value};

use super::{messages, tools};
use crate::answer_form;
use crate::answers::Job;
use crate::conversation::ConversationFields;
use crate::error::ApiError;
use crate::field_rules::{self, CHAT};
use crate::fields::Fields;
use crate::limits::{CHOICES_MAX, TOP_LOGPROBS_MAX};
use crate::prompt::Prompt;
use crate::reasoning;
use crate::sampling::{CommonFields, token_limit};
use crate::server::ServedModel;

/// Template variables that are set through other request fields.
const OWN_VARIABLES: [&str; 3] = ["messages", "tools", "documents"];

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
        field_rules::apply(&mut fields, CHAT)?;
        check_modalities(&mut fields)?;
        let messages = messages::take(&mut fields)?;
        let tools = tools::take(&mut fields, served)?;
        let form = answer_form::take(&mut fields)?;
        shared.options.sampling.top_logprobs = top_logprobs(&mut fields)?;
        let names = ["max_tokens", "max_completion_tokens", "n_predict"];
        shared.options.max_tokens = token_limit(&mut fields, names)?;
        let arguments = template_arguments(&mut fields, model)?;
        let begins = fields.flag("add_generation_prompt")?;
        let continues = fields.flag("continue_final_message")?;
        let place = fields.at("continue_final_message");
        fields.end()?;
        let calls_max = tools.calls_max();
        let asked =
            ConversationFields { messages, tools, form, form_place: "response_format", arguments };
        let mut conversation = asked.conversation(&mut shared.options)?;
        if continues == Some(true) && !conversation.continue_final_message {
            return Err(place.invalid("the last message is not a text of the assistant"));
        }
        // Default: an unfinished answer is continued.
        conversation.continue_final_message &= continues.unwrap_or(true);
        // Default: another conversation ends with the start of an answer.
        conversation.add_generation_prompt = begins.unwrap_or(true);
        let (stream, include_usage) = (shared.stream, shared.include_usage);
        let has_logprobs = shared.options.sampling.top_logprobs.is_some();
        let job = Job {
            prompts: vec![Prompt::Conversation(Box::new(conversation))],
            choices: shared.choices,
            keeps_sessions: shared.keeps_sessions,
            calls_max,
            options: shared.options,
            param: "messages",
        };
        Ok(Self { job, stream, include_usage, has_logprobs })
    }
}

fn top_logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    // Default: no log-probabilities, as the API specifies.
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=TOP_LOGPROBS_MAX)?;
    if top.is_some_and(|top| top > 0) && !wanted {
        return Err(fields.invalid("top_logprobs", "`logprobs` must be true with it"));
    }
    // Default: only the log-probability of the sampled token.
    let top = usize::try_from(top.unwrap_or(0)).unwrap_or(0);
    Ok(wanted.then_some(top))
}

/// Checks `modalities`: text is the only kind of output.
fn check_modalities(fields: &mut Fields) -> Result<(), ApiError> {
    let name = "modalities";
    // Default: text.
    let kinds = fields.list(name, CHOICES_MAX as usize)?.unwrap_or_default();
    match kinds.iter().find(|kind| kind.as_str() != Some("text")) {
        Some(other) => {
            Err(fields.unsupported(name, format!("{other} is not supported, only text")))
        }
        None => Ok(()),
    }
}

fn template_arguments(fields: &mut Fields, model: &Model) -> Result<Map<String, Value>, ApiError> {
    let mut arguments = Map::new();
    if let Some(mut given) = fields.object("chat_template_kwargs")? {
        for name in OWN_VARIABLES {
            given.refuse(name, "this variable is set through another field of the request")?;
        }
        if given.flag("add_generation_prompt")? == Some(false) {
            let message = "a chat ends with the start of an answer";
            return Err(given.unsupported("add_generation_prompt", message));
        }
        arguments = given.take_where(|name| reasoning::knows(model, name));
        given.end()?;
    }
    if let Some(reasons) = fields.flag("enable_thinking")?
        && !reasoning::set_switch(&mut arguments, model, reasons)
    {
        fields.ignore("enable_thinking")?;
    }
    reasoning::take_effort(fields, "reasoning_effort", model, &mut arguments)?;
    reasoning::take_reasoning(fields, model, &mut arguments)?;
    reasoning::take_thinking(fields, model, &mut arguments)?;
    Ok(arguments)
}
