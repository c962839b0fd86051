//! Parsing of chat and completion requests.

use std::sync::Arc;
use std::time::Duration;

use nestling::engine::text::TemplateTime;
use nestling::{Conversation, GenerateOptions, Message, Model};
use serde_json::{Map, Value};

use super::reply::Kind;
use super::{messages, options, time};
use crate::answer_form::{self, AnswerForm};
use crate::answers::Job;
use crate::chat::tools;
use crate::conversation::ConversationFields;
use crate::error::ApiError;
use crate::field_rules::{self, OLLAMA, OLLAMA_GENERATE};
use crate::fields::Fields;
use crate::limits::{BODY_BYTES_MAX, TEXT_BYTES_MAX};
use crate::prompt::Prompt;
use crate::reasoning;
use crate::server::{ServedModel, unix_seconds};

/// Idle time after which a model is closed; `None` means never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeepAlive(pub Option<Duration>);

#[derive(Debug)]
pub(super) struct Request {
    /// `None` if the model is only to be loaded or unloaded.
    pub job: Option<Job>,
    pub stream: bool,
    pub keep: Option<KeepAlive>,
}

/// # Errors
/// Returns an error if no model is named.
pub(super) fn model_name(fields: &mut Fields) -> Result<String, ApiError> {
    let name = fields.text("model", TEXT_BYTES_MAX)?;
    let name = name.filter(|name| !name.is_empty());
    name.ok_or_else(|| fields.invalid("model", "`model` is missing"))
}

impl Request {
    /// # Errors
    /// Returns an error for the first field that is missing, unknown, unsupported or invalid.
    pub fn read(kind: Kind, mut fields: Fields, served: &ServedModel) -> Result<Self, ApiError> {
        let model = &served.model;
        // Default: streaming, as this API specifies.
        let stream = fields.flag("stream")?.unwrap_or(true);
        let keep = keep(&mut fields)?;
        let mut options = options::take(&mut fields, model)?;
        field_rules::apply(&mut fields, OLLAMA)?;
        let form = form(&mut fields)?;
        let thinking = thinking(&mut fields, model)?;
        let prompt = match kind {
            Kind::Chat => chat(&mut fields, served, form, &mut options)?,
            Kind::Generate => {
                options.constraint = form.map(|form| Arc::new(form.guide) as _);
                text(&mut fields, model)?
            }
        };
        fields.end()?;
        let job = prompt.map(|prompt| {
            let prompt = with_thinking(prompt, thinking);
            job(kind, prompt, options)
        });
        Ok(Self { job, stream, keep })
    }
}

fn job(kind: Kind, prompt: Prompt, options: GenerateOptions) -> Job {
    let param = match kind {
        Kind::Chat => "messages",
        Kind::Generate => "prompt",
    };
    let prompts = vec![prompt];
    Job { prompts, choices: 1, options, keeps_sessions: true, calls_max: None, param }
}

fn with_thinking(prompt: Prompt, arguments: Map<String, Value>) -> Prompt {
    match prompt {
        Prompt::Conversation(mut conversation) => {
            conversation.template_arguments = arguments;
            Prompt::Conversation(conversation)
        }
        other => other,
    }
}

fn keep(fields: &mut Fields) -> Result<Option<KeepAlive>, ApiError> {
    let name = "keep_alive";
    let Some(value) = fields.take(name) else { return Ok(None) };
    let kept = time::parse_keep_alive(&value).map(|kept| Some(KeepAlive(kept)));
    kept.ok_or_else(|| fields.invalid(name, "seconds, or a duration such as `5m`, was expected"))
}

/// Reads the output constraint; `None` for free text.
fn form(fields: &mut Fields) -> Result<Option<AnswerForm>, ApiError> {
    let name = "format";
    match fields.take(name) {
        None => Ok(None),
        Some(Value::String(word)) if word.is_empty() => Ok(None),
        Some(Value::String(word)) if word == "json" => answer_form::any_object().map(Some),
        Some(schema @ Value::Object(_)) => answer_form::of_schema(name, &schema).map(Some),
        Some(_) => Err(fields.invalid(name, "`json` or a JSON schema was expected")),
    }
}

/// Reads `think` and returns the template variables for it.
fn thinking(fields: &mut Fields, model: &Model) -> Result<Map<String, Value>, ApiError> {
    let name = "think";
    let mut arguments = Map::new();
    if let Some(Value::Bool(reasons)) = fields.peek(name).cloned() {
        fields.take(name);
        reasoning::switch(&fields.at(name), model, &mut arguments, reasons)?;
    } else {
        reasoning::take_effort(fields, name, model, &mut arguments)?;
    }
    Ok(arguments)
}

fn chat(
    fields: &mut Fields,
    served: &ServedModel,
    form: Option<AnswerForm>,
    options: &mut GenerateOptions,
) -> Result<Option<Prompt>, ApiError> {
    let messages = messages::take(fields)?;
    let tools = tools::take(fields, served)?;
    if messages.is_empty() {
        return Ok(None);
    }
    let asked =
        ConversationFields { messages, tools, form, form_place: "format", arguments: Map::new() };
    Ok(Some(Prompt::Conversation(Box::new(asked.conversation(options)?))))
}

fn conversation(messages: Vec<Message>) -> Conversation {
    let mut conversation = Conversation::new(messages);
    // Default: only a clock after the year 292 billion overflows.
    let now = i64::try_from(unix_seconds()).unwrap_or(0);
    conversation.now = Some(TemplateTime::from_unix_seconds(now));
    conversation
}

fn text(fields: &mut Fields, model: &Model) -> Result<Option<Prompt>, ApiError> {
    field_rules::apply(fields, OLLAMA_GENERATE)?;
    // Default: the prompt is rendered as a chat message.
    let raw = fields.flag("raw")?.unwrap_or(false);
    let system = fields.text("system", BODY_BYTES_MAX)?.filter(|text| !text.is_empty());
    let prompt = fields.text("prompt", BODY_BYTES_MAX)?.filter(|text| !text.is_empty());
    let is_text = raw || !model.capabilities().chat;
    if is_text && system.is_some() {
        let message = "a prompt without a chat template has no place for it";
        return Err(fields.unsupported("system", message));
    }
    Ok(prompt.map(|prompt| match is_text {
        true => Prompt::Text(prompt),
        false => {
            let system = system.map(Message::system);
            let messages = system.into_iter().chain([Message::user(prompt)]).collect();
            Prompt::Conversation(Box::new(conversation(messages)))
        }
    }))
}
