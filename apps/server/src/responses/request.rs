//! Parsing of response requests.

use nestling::{GenerateOptions, SamplingOptions, SamplingParams};
use serde_json::{Map, Value, json};

use super::history::{self, RequestHistory};
use super::items;
use super::reply::{Included, ReplyStorage};
use super::tools::{self, ToolForms};
use crate::access::Owner;
use crate::answer_form::{self, AnswerForm};
use crate::answers::Job;
use crate::conversation::ConversationFields;
use crate::error::ApiError;
use crate::field_rules::{self, RESPONSE};
use crate::fields::Fields;
use crate::limits::{BODY_BYTES_MAX, NAME_BYTES_MAX, TEXT_BYTES_MAX, TOOLS_MAX, TOP_LOGPROBS_MAX};
use crate::prompt::Prompt;
use crate::reasoning;
use crate::sampling::{TEMPERATURES, check_model, counted, group, sampling, stop, tokens_max};
use crate::server::ServedModel;

/// Maximum number of entries in `metadata`.
const METADATA_MAX: usize = 16;

pub(super) struct ResponseRequest {
    pub job: Job,
    pub stream: bool,
    /// Request fields that replies repeat.
    pub echo: Map<String, Value>,
    pub forms: ToolForms,
    pub included: Included,
    pub storage: ReplyStorage,
}

impl ResponseRequest {
    /// # Errors
    /// Returns an error for the first field that is missing, unknown, unsupported or invalid.
    pub fn read(mut fields: Fields, served: &ServedModel, owner: Owner) -> Result<Self, ApiError> {
        let model = &served.model;
        let mut echo = echo(&fields);
        field_rules::apply(&mut fields, RESPONSE)?;
        check_model(&mut fields, served)?;
        let instructions = fields.text("instructions", BODY_BYTES_MAX)?;
        let RequestHistory { previous, earlier, kept } =
            history::take(&mut fields, &served.responses, owner)?;
        let messages = items::take(&mut fields, instructions.as_deref(), earlier)?;
        let (tools, forms) = tools::take(&mut fields, served)?;
        let form = text_form(&mut fields)?;
        let form = answer_form::or_guided(&mut fields, form, "text.format")?;
        let mut arguments = Map::new();
        reasoning::take_reasoning(&mut fields, model, &mut arguments)?;
        let (mut sampling, params) = sampling(&mut fields, model, TEMPERATURES)?;
        let included = take_included(&mut fields, &mut sampling)?;
        say(&mut echo, &params);
        let max_tokens = tokens_max(&mut fields, "max_output_tokens")?;
        let group = group(&mut fields)?;
        let stop = stop(&mut fields)?;
        check_metadata(&mut fields)?;
        let stream = take_stream(&mut fields)?;
        fields.end()?;
        let mut options = counted();
        let calls_max = tools.calls_max();
        let asked =
            ConversationFields { messages, tools, form, form_place: "text.format", arguments };
        let conversation = asked.conversation(&mut options)?;
        let job = Job {
            prompts: vec![Prompt::Conversation(Box::new(conversation))],
            choices: 1,
            options: GenerateOptions { max_tokens, sampling, stop, group, ..options },
            keeps_sessions: true,
            calls_max,
            param: "input",
        };
        let storage = ReplyStorage { owner, previous, input: kept };
        Ok(Self { job, stream, echo, forms, included, storage })
    }
}

/// Returns the fields that replies repeat, with the defaults of missing ones.
fn echo(fields: &Fields) -> Map<String, Value> {
    let absent = [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", true.into()),
        ("reasoning", json!({ "effort": null, "summary": null })),
        ("safety_identifier", Value::Null),
        ("prompt_cache_key", Value::Null),
        ("text", json!({ "format": { "type": "text" } })),
        ("tool_choice", "auto".into()),
        ("tools", json!([])),
        ("top_logprobs", 0.into()),
        ("user", Value::Null),
    ];
    let mut echo = Map::new();
    for (name, otherwise) in absent {
        let said = fields.peek(name).cloned();
        echo.insert(name.into(), said.unwrap_or(otherwise));
    }
    echo
}

fn say(echo: &mut Map<String, Value>, sampling: &SamplingParams) {
    echo.insert("temperature".into(), decimal(sampling.temperature));
    echo.insert("top_p".into(), decimal(sampling.top_p));
}

/// Converts a number to its shortest decimal form.
fn decimal(number: f32) -> Value {
    // Default: null for NaN and infinity.
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

fn text_form(fields: &mut Fields) -> Result<Option<AnswerForm>, ApiError> {
    let Some(mut text) = fields.object("text")? else { return Ok(None) };
    let mut guide = None;
    if let Some(mut format) = text.object("format")? {
        let kind = format.required_text("type", NAME_BYTES_MAX)?;
        guide = match kind.as_str() {
            "text" => None,
            "json_object" => Some(answer_form::any_object()?),
            "json_schema" => Some(answer_form::named_schema(&mut format)?),
            _ => {
                let message =
                    format!("`{kind}` is not supported: text, json_object or json_schema");
                return Err(format.unsupported("type", message));
            }
        };
        format.end()?;
    }
    if text.text("verbosity", NAME_BYTES_MAX)?.is_some_and(|word| word != "medium") {
        text.ignore("verbosity")?;
    }
    text.end()?;
    Ok(guide)
}

/// Reads `include` and `top_logprobs`, and sets the number of alternatives per token.
fn take_included(
    fields: &mut Fields,
    sampling: &mut SamplingOptions,
) -> Result<Included, ApiError> {
    let name = "include";
    // Default: no additional output.
    let included = fields.list(name, TOOLS_MAX)?.unwrap_or_default();
    let is_logprobs = |item: &Value| item == "message.output_text.logprobs";
    let place = fields.at(name);
    let is_sealed = |item: &Value| item == "reasoning.encrypted_content";
    let is_known = |item: &Value| is_logprobs(item) || is_sealed(item);
    let others = included.iter().enumerate().filter(|(_, item)| !is_known(item));
    others.map(|(index, _)| place.item(index)).try_for_each(|item| item.ignore())?;
    let top = fields.integer("top_logprobs", 0..=TOP_LOGPROBS_MAX)?;
    let is_asked = included.iter().any(is_logprobs) || top.is_some_and(|top| top > 0);
    // Default: only the log-probability of the sampled token.
    let top = usize::try_from(top.unwrap_or(0)).unwrap_or(0);
    sampling.top_logprobs = is_asked.then_some(top);
    Ok(Included { has_logprobs: is_asked, has_sealed_reasoning: included.iter().any(is_sealed) })
}

/// Checks `metadata`, which replies repeat.
fn check_metadata(fields: &mut Fields) -> Result<(), ApiError> {
    let name = "metadata";
    let is_text = |text: &Value| text.as_str().is_some_and(|text| text.len() <= TEXT_BYTES_MAX);
    match fields.take(name) {
        None => Ok(()),
        Some(Value::Object(map)) if map.len() <= METADATA_MAX && map.values().all(is_text) => {
            Ok(())
        }
        Some(_) => {
            let message = format!(
                "an object of at most {METADATA_MAX} texts of at most {TEXT_BYTES_MAX} bytes was expected"
            );
            Err(fields.invalid(name, message))
        }
    }
}

fn take_stream(fields: &mut Fields) -> Result<bool, ApiError> {
    // Default: no streaming, as the API specifies.
    let stream = fields.flag("stream")?.unwrap_or(false);
    if let Some(mut options) = fields.object("stream_options")? {
        if options.flag("include_obfuscation")? == Some(true) {
            options.ignore("include_obfuscation")?;
        }
        options.end()?;
    }
    Ok(stream)
}
