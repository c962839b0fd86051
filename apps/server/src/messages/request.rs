//! Parsing of message requests.

use nestling::{Conversation, GenerateOptions};
use serde_json::Map;

use super::{blocks, history, tools};
use crate::answer_form;
use crate::answers::Job;
use crate::conversation::ConversationFields;
use crate::error::ApiError;
use crate::field_rules::{self, MESSAGES};
use crate::fields::Fields;
use crate::limits::{NAME_BYTES_MAX, STOPS_MAX, TEXT_BYTES_MAX};
use crate::prompt::Prompt;
use crate::reasoning;
use crate::sampling::{check_model, counted, group_of, sampling, stop_texts, tokens_max};
use crate::server::ServedModel;

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
        let tools = tools::take(fields, served)?;
        let mut arguments = Map::new();
        reasoning::take_thinking(fields, model, &mut arguments)?;
        let mut form = None;
        if let Some(mut config) = fields.object("output_config")? {
            reasoning::take_effort(&mut config, "effort", model, &mut arguments)?;
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
        let form = answer_form::or_guided(fields, form, "output_config.format")?;
        blocks::take_cache_control(fields)?;
        field_rules::apply(fields, MESSAGES)?;
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
        if !fields.names("max_tokens") {
            return Err(fields.invalid("max_tokens", "`max_tokens` is missing"));
        }
        let max_tokens = tokens_max(&mut fields, "max_tokens")?;
        let (sampling, _) = sampling(&mut fields, &served.model, 0.0..=1.0)?;
        let name = "stop_sequences";
        // Default: no stop sequences.
        let stop = fields.list(name, STOPS_MAX)?.unwrap_or_default();
        let stop = stop_texts(&fields, name, stop, STOPS_MAX)?;
        let mut group = None;
        if let Some(mut metadata) = fields.object("metadata")? {
            group = metadata.text("user_id", TEXT_BYTES_MAX)?.map(|user| group_of(&user));
            metadata.end()?;
        }
        // Default: no streaming, as the API specifies.
        let stream = fields.flag("stream")?.unwrap_or(false);
        fields.end()?;
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
