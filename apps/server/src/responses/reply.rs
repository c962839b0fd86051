//! Reply objects of the Responses API.

use nestling::{FinishReason, GenerationSummary, Model, TokenEvent};
use serde_json::{Map, Value, json};

use super::sealed::sealed;
use super::tools::{INPUT, ToolForm, ToolForms};
use crate::access::Owner;
use crate::error::ApiError;
use crate::logprobs::of_response;
use crate::parts::{Kind, Part, Parts};
use crate::response_store::StoredResponse;
use crate::server::{ServedModel, unix_seconds};
use crate::usage::random;

#[derive(Debug, Default)]
pub(super) struct Ids {
    list: Vec<String>,
}

impl Ids {
    /// Returns the id of an item, created on first use.
    pub fn of(&mut self, part: &Part, index: usize) -> &str {
        if self.list.len() <= index {
            let prefix = match part.kind {
                Kind::Reasoning => "rs_",
                Kind::Text => "msg_",
                Kind::Call { .. } => "fc_",
            };
            self.list.push(format!("{prefix}{:016x}{:016x}", random(), random()));
        }
        // Items are created in order, so the id exists.
        self.list.get(index).map_or("", String::as_str)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
    Incomplete,
}

impl Status {
    /// Returns the status of a closed item. `cut` is true if the end of a truncated response closed it.
    pub fn of(part: &Part, cut: bool) -> Self {
        let is_broken = match &part.kind {
            Kind::Call { arguments, .. } => !matches!(arguments, Some(Value::Object(_))),
            _ => false,
        };
        if cut || is_broken { Self::Incomplete } else { Self::Completed }
    }

    fn word(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
        }
    }
}

/// Fields common to all parts of a reply.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    id: String,
    created: u64,
    model: String,
    echo: Map<String, Value>,
    forms: ToolForms,
    included: Included,
    storage: ReplyStorage,
}

/// Output that a request asks for besides the text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Included {
    pub has_logprobs: bool,
    /// True if reasoning items carry their text in an opaque form as well.
    pub has_sealed_reasoning: bool,
}

/// Data stored with a reply, and its owner.
#[derive(Clone, Debug)]
pub(super) struct ReplyStorage {
    pub owner: Owner,
    pub previous: Option<String>,
    /// Input items of the request. `None` if the response is not stored.
    pub input: Option<Vec<Value>>,
}

impl Reply {
    pub fn new(
        served: &ServedModel,
        echo: Map<String, Value>,
        forms: ToolForms,
        included: Included,
        storage: ReplyStorage,
    ) -> Self {
        let id = format!("resp_{:016x}{:016x}", random(), random());
        let (created, model) = (unix_seconds(), served.id.clone());
        Self { id, created, model, echo, forms, included, storage }
    }

    fn object(&self, status: &str, output: Vec<Value>) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("id".into(), self.id.as_str().into());
        object.insert("object".into(), "response".into());
        object.insert("created_at".into(), self.created.into());
        object.insert("status".into(), status.into());
        object.insert("error".into(), Value::Null);
        object.insert("incomplete_details".into(), Value::Null);
        object.insert("model".into(), self.model.as_str().into());
        object.insert("output".into(), output.into());
        object.insert("usage".into(), Value::Null);
        object.extend(self.echo.clone());
        for (name, value) in [
            ("background", false.into()),
            ("previous_response_id", self.storage.previous.clone().into()),
            ("service_tier", "default".into()),
            ("store", self.storage.input.is_some().into()),
            ("truncation", "disabled".into()),
        ] {
            object.insert(name.into(), value);
        }
        object
    }

    /// Returns the response before any output.
    pub fn initial(&self) -> Value {
        self.object("in_progress", Vec::new()).into()
    }

    /// Returns a complete response, which is stored if it was asked for.
    ///
    /// # Errors
    /// An internal error if the completion has not ended.
    pub fn finish(
        &self,
        served: &ServedModel,
        parts: &Parts,
        ids: &Ids,
    ) -> Result<Value, ApiError> {
        let response = self.whole(&served.model, parts, ids)?;
        if let Some(input) = &self.storage.input {
            let own = input.iter().filter_map(|item| item["id"].as_str().map(str::to_owned));
            let stored = StoredResponse {
                owner: self.storage.owner,
                previous: self.storage.previous.clone(),
                item_ids: own.chain(ids.list.iter().cloned()).collect(),
                input: Value::from(input.as_slice()).to_string(),
                response: response.to_string(),
            };
            served.responses.insert(self.id.clone(), stored);
        }
        Ok(response)
    }

    fn whole(&self, model: &Model, parts: &Parts, ids: &Ids) -> Result<Value, ApiError> {
        let finished = parts.end()?;
        let cut = is_cut(finished);
        let output = parts.list.iter().zip(&ids.list).enumerate().map(|(index, (part, id))| {
            let status = Status::of(part, cut && parts.open_at_end == Some(index));
            self.item(model, part, id, status)
        });
        let status = if cut { Status::Incomplete } else { Status::Completed };
        let mut object = self.object(status.word(), output.collect());
        if cut {
            object.insert("incomplete_details".into(), json!({ "reason": "max_output_tokens" }));
        } else {
            object.insert("completed_at".into(), unix_seconds().into());
        }
        object.insert("usage".into(), usage(finished, parts.reasoning_tokens()));
        Ok(object.into())
    }

    /// Returns a failed response.
    pub fn failed(&self, error: &ApiError) -> Value {
        let mut object = self.object("failed", Vec::new());
        // Default: errors without a code are the server's own.
        let code = error.code.unwrap_or("server_error");
        let inner = json!({ "code": code, "message": error.message });
        object.insert("error".into(), inner);
        object.into()
    }

    /// Returns an item; an empty one while it is in progress.
    pub fn item(&self, model: &Model, part: &Part, id: &str, status: Status) -> Value {
        let is_whole = status != Status::InProgress;
        let content: Vec<Value> = is_whole.then(|| self.content(model, part)).into_iter().collect();
        let word = status.word();
        match &part.kind {
            Kind::Reasoning => {
                let mut item = json!({
                    "id": id, "type": "reasoning", "summary": [], "content": content, "status": word,
                });
                if is_whole && self.included.has_sealed_reasoning {
                    item["encrypted_content"] = sealed(&part.text).into();
                }
                item
            }
            Kind::Text => json!({
                "id": id, "type": "message", "role": "assistant", "status": word, "content": content,
            }),
            Kind::Call { id: call, name, .. } => {
                let form = self.forms.get(name);
                let written = match (is_whole, form) {
                    (false, _) => "",
                    (true, Some(ToolForm::Custom)) => self.custom_input(part),
                    (true, _) => &part.text,
                };
                let own = match form {
                    Some(ToolForm::Custom) => {
                        json!({ "type": "custom_tool_call", "name": name, "input": written })
                    }
                    Some(ToolForm::Namespaced { namespace, name }) => json!({
                        "type": "function_call", "name": name, "namespace": namespace,
                        "arguments": written,
                    }),
                    None => json!({ "type": "function_call", "name": name, "arguments": written }),
                };
                let mut item = json!({ "id": id, "status": word, "call_id": call });
                if let (Value::Object(item), Value::Object(own)) = (&mut item, own) {
                    item.extend(own);
                }
                item
            }
        }
    }

    /// Returns true if a part is a call of a tool whose input is a text.
    pub fn is_custom(&self, part: &Part) -> bool {
        matches!(&part.kind, Kind::Call { name, .. } if self.forms.get(name) == Some(&ToolForm::Custom))
    }

    /// Returns the input of a call whose input is a text; the arguments as written if they are cut off.
    pub fn custom_input<'a>(&self, part: &'a Part) -> &'a str {
        let arguments = match &part.kind {
            Kind::Call { arguments, .. } => arguments.as_ref(),
            _ => None,
        };
        let input = arguments.and_then(|arguments| arguments.get(INPUT)?.as_str());
        // Default: a truncated call has no parsed arguments.
        input.unwrap_or(&part.text)
    }

    /// Returns the content of an item.
    pub fn content(&self, model: &Model, part: &Part) -> Value {
        match part.kind {
            Kind::Text => json!({
                "type": "output_text", "text": part.text, "annotations": [],
                "logprobs": self.logprobs(model, &part.tokens),
            }),
            _ => json!({ "type": "reasoning_text", "text": part.text }),
        }
    }

    /// Returns the log-probabilities of tokens; empty if they were not requested.
    pub fn logprobs(&self, model: &Model, tokens: &[TokenEvent]) -> Value {
        if self.included.has_logprobs { of_response(model, tokens) } else { json!([]) }
    }
}

/// Returns true if a completion ended before the model ended it.
pub(super) fn is_cut(finished: &GenerationSummary) -> bool {
    !matches!(finished.reason, FinishReason::Stop | FinishReason::ToolCalls)
}

fn usage(finished: &GenerationSummary, reasoning: usize) -> Value {
    let usage = &finished.usage;
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": { "cached_tokens": usage.cached_tokens, "cache_write_tokens": 0 },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "reasoning_tokens": reasoning },
        "total_tokens": usage.total_tokens(),
    })
}
