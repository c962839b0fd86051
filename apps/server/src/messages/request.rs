//! Parsing of message requests.

use nestling::{Conversation, GenerateOptions, Model};
use serde_json::{Map, Value};

use super::{blocks, history, tools};
use crate::answer_form;
use crate::answers::Job;
use crate::conversation::ConversationFields;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{NAME_BYTES_MAX, STOP_SEQUENCES_MAX, TEXT_BYTES_MAX, TOKENS_MAX};
use crate::prompt::Prompt;
use crate::reasoning;
use crate::sampling::{
    basic_sampling, check_model, check_sampling, counted, group_of, stop_texts, tokens_max, top_k,
};
use crate::server::ServedModel;

/// Minimum reasoning budget in the API, in tokens.
const BUDGET_MIN: u64 = 1024;

/// The conversation part of a request, common to both routes.
pub(super) struct MessagesPrompt {
    pub conversation: Conversation,
    /// Options with the output constraint of the conversation.
    options: GenerateOptions,
    calls_max: Option<usize>,
}

impl MessagesPrompt {
    /// # Errors
    /// Returns an error for the first field that is missing, unsupported or invalid.
    pub fn take(fields: &mut Fields, served: &ServedModel) -> Result<Self, ApiError> {
        let model = &served.model;
        check_model(fields, served)?;
        let messages = history::take(fields)?;
        let tools = tools::take(fields, model)?;
        let mut arguments = Map::new();
        take_thinking(fields, model, &mut arguments)?;
        let mut form = None;
        if let Some(mut config) = fields.object("output_config")? {
            take_effort(&mut config, model, &mut arguments)?;
            if let Some(mut format) = config.object("format")? {
                let kind = format.required_text("type", NAME_BYTES_MAX)?;
                if kind != "json_schema" {
                    return Err(format.unsupported("type", "only `json_schema` is supported"));
                }
                let schema = format.require("schema")?;
                form = Some(answer_form::of_schema(&format.path("schema"), &schema)?);
                format.end()?;
            }
            config.end()?;
        }
        blocks::take_cache_control(fields)?;
        take_word(fields, "speed", &["standard"])?;
        let mut options = counted();
        let calls_max = tools.calls_max();
        let form_place = "output_config.format";
        let asked = ConversationFields { messages, tools, form, form_place, arguments };
        let conversation = asked.conversation(&mut options)?;
        Ok(Self { conversation, options, calls_max })
    }
}

pub(super) struct MessageRequest {
    pub job: Job,
    pub stream: bool,
}

impl MessageRequest {
    /// # Errors
    /// Returns an error for the first field that is missing, unknown, unsupported or invalid.
    pub fn read(mut fields: Fields, served: &ServedModel) -> Result<Self, ApiError> {
        let MessagesPrompt { conversation, options, calls_max } =
            MessagesPrompt::take(&mut fields, served)?;
        let max_tokens = tokens_max(&mut fields, "max_tokens", 0)?;
        let missing = || fields.invalid("max_tokens", "`max_tokens` is missing");
        let max_tokens = max_tokens.ok_or_else(missing)?;
        let mut sampling = basic_sampling(&mut fields, &served.model, 0.0..=1.0)?;
        top_k(&mut fields, &mut sampling)?;
        check_sampling(&fields, &sampling)?;
        let name = "stop_sequences";
        // Default: no stop sequences.
        let stop = fields.list(name, STOP_SEQUENCES_MAX)?.unwrap_or_default();
        let stop = stop_texts(&fields, name, stop, STOP_SEQUENCES_MAX)?;
        let mut group = None;
        if let Some(mut metadata) = fields.object("metadata")? {
            group = metadata.text("user_id", TEXT_BYTES_MAX)?.map(|user| group_of(&user));
            metadata.end()?;
        }
        // Both values are accepted and have no effect: there is a single service tier.
        take_word(&mut fields, "service_tier", &["auto", "standard_only"])?;
        // Default: no streaming, as the API specifies.
        let stream = fields.flag("stream")?.unwrap_or(false);
        for name in ["container", "inference_geo", "mcp_servers", "diagnostics"] {
            if fields.take(name).is_some() {
                return Err(fields.unsupported(name, format!("`{name}` is not supported")));
            }
        }
        fields.end()?;
        let (max_tokens, sampling) = (Some(max_tokens), sampling.into());
        let job = Job {
            prompts: vec![Prompt::Conversation(Box::new(conversation))],
            choices: 1,
            options: GenerateOptions { max_tokens, sampling, stop, group, ..options },
            keeps_sessions: true,
            calls_max,
            param: "messages",
        };
        Ok(Self { job, stream })
    }
}

/// Takes a field whose supported values have no effect.
fn take_word(fields: &mut Fields, name: &str, words: &[&str]) -> Result<(), ApiError> {
    match fields.text(name, NAME_BYTES_MAX)? {
        Some(word) if !words.contains(&word.as_str()) => {
            let message = format!("{word:?} is not supported, only {}", words.join(" and "));
            Err(fields.unsupported(name, message))
        }
        _ => Ok(()),
    }
}

/// Reads `thinking` and sets the template variables for it.
fn take_thinking(
    fields: &mut Fields,
    model: &Model,
    arguments: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    let Some(mut thinking) = fields.object("thinking")? else { return Ok(()) };
    let kind = thinking.required_text("type", NAME_BYTES_MAX)?;
    let can = model.capabilities();
    match kind.as_str() {
        "disabled" => {
            if !reasoning::set_switch(arguments, model, false) && can.thinking {
                let message =
                    "this model always reasons: its chat template has no option to disable it";
                return Err(thinking.unsupported("type", message));
            }
        }
        "adaptive" | "enabled" => {
            if !reasoning::set_switch(arguments, model, true) && !can.thinking {
                return Err(thinking.unsupported("type", "this model does not reason"));
            }
            if kind == "enabled" {
                take_budget(&mut thinking, model, arguments)?;
            }
            take_word(&mut thinking, "display", &["summarized"])?;
        }
        _ => {
            let message = format!("{kind:?} is not supported: adaptive, enabled or disabled");
            return Err(thinking.unsupported("type", message));
        }
    }
    thinking.end()
}

/// Reads the reasoning budget and sets the template variable for it. A budget is an error if the template
/// does not have this variable.
fn take_budget(
    thinking: &mut Fields,
    model: &Model,
    arguments: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    let (name, variable) = ("budget_tokens", "thinking_budget");
    let budget = thinking.integer(name, BUDGET_MIN..=TOKENS_MAX)?;
    let budget = budget.ok_or_else(|| thinking.invalid(name, "`budget_tokens` is missing"))?;
    if !reasoning::knows(model, variable) {
        let message = "the chat template of this model has no option for the reasoning length; use `type` adaptive";
        return Err(thinking.unsupported(name, message));
    }
    arguments.insert(variable.into(), budget.into());
    Ok(())
}

fn take_effort(
    config: &mut Fields,
    model: &Model,
    arguments: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    let name = "effort";
    let Some(effort) = config.text(name, NAME_BYTES_MAX)? else { return Ok(()) };
    let known = ["low", "medium", "high", "xhigh", "max"];
    if !known.contains(&effort.as_str()) {
        return Err(config.invalid(name, format!("one of {} was expected", known.join(", "))));
    }
    if !reasoning::has_efforts(model) || !reasoning::set_effort(arguments, model, &effort) {
        let message = "the chat template of this model has no option for the reasoning effort";
        return Err(config.unsupported(name, message));
    }
    Ok(())
}
