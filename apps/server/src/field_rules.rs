//! Request fields that no parser reads: hints, and fields that would change the output and are not supported.
//!
//! A field of a request belongs to one of three classes. A supported field that changes the output is read by
//! the parser of its API. A hint (about billing, storage, caching, placement, telemetry or speed) is accepted
//! and reported in the response header `x-nestling-ignored`. A field that would change the output and is not
//! supported is an error that names it, unless its value asks for what happens anyway. The tables here hold
//! the last two classes; `openapi.json` and `docs/request-fields.md` are made from them. Fields in no table are
//! treated as hints.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Fields, says_nothing};

/// JSON type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Any,
    Flag,
    Number,
    Text,
    List,
    Object,
}

impl Kind {
    fn admits(self, value: &Value) -> bool {
        match self {
            Self::Any => true,
            Self::Flag => value.is_boolean(),
            Self::Number => value.is_number(),
            Self::Text => value.is_string(),
            Self::List => value.is_array(),
            Self::Object => value.is_object(),
        }
    }

    fn expected(self) -> &'static str {
        match self {
            Self::Any => "any value was expected",
            Self::Flag => "`true` or `false` was expected",
            Self::Number => "a number was expected",
            Self::Text => "a text was expected",
            Self::List => "a list was expected",
            Self::Object => "an object was expected",
        }
    }
}

/// Values that ask for what happens anyway.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Neutral {
    /// Empty values: `false`, an empty text, list or object.
    Empty,
    /// `true`, and not `false`.
    True,
    /// Empty values and these.
    Numbers(&'static [f64]),
    /// Empty values and these.
    Words(&'static [&'static str]),
}

impl Neutral {
    fn holds(self, value: &Value) -> bool {
        match self {
            Self::True => value == &Value::Bool(true),
            _ if says_nothing(value) => true,
            Self::Empty => false,
            Self::Numbers(numbers) => value.as_f64().is_some_and(|found| numbers.contains(&found)),
            Self::Words(words) => value.as_str().is_some_and(|found| words.contains(&found)),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Class {
    /// Accepted and reported.
    Hint,
    /// An error with this text.
    Refused(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldRule {
    pub name: &'static str,
    pub kind: Kind,
    pub neutral: Neutral,
    pub class: Class,
}

const fn hint(name: &'static str, kind: Kind) -> FieldRule {
    FieldRule { name, kind, neutral: Empty, class: Class::Hint }
}

const fn refused(name: &'static str, kind: Kind, neutral: Neutral, why: &'static str) -> FieldRule {
    FieldRule { name, kind, neutral, class: Class::Refused(why) }
}

/// Takes the fields of a table from a request.
///
/// # Errors
/// Returns an error for a value of the wrong type, and for a refused field whose value is not neutral.
pub(crate) fn apply(fields: &mut Fields, rules: &[FieldRule]) -> Result<(), ApiError> {
    for rule in rules {
        let Some(value) = fields.take(rule.name) else { continue };
        if !rule.kind.admits(&value) {
            return Err(fields.invalid(rule.name, rule.kind.expected()));
        }
        if rule.neutral.holds(&value) {
            continue;
        }
        match rule.class {
            Class::Hint => fields.ignore(rule.name)?,
            Class::Refused(why) => return Err(fields.unsupported(rule.name, why)),
        }
    }
    Ok(())
}

use Kind::{Any, Flag, List, Number, Object, Text};
use Neutral::{Empty, Numbers, True, Words};

const NO_TFS: &str = "tail-free sampling is not supported; use `min_p`";
const NO_AUDIO: &str = "no model here produces audio";
const NO_LISTS: &str = "this restriction of tokens is not supported; use `logit_bias`";
const NO_CONVERSATIONS: &str = "conversations are not stored; use `previous_response_id`";

/// Fields of chats and completions in OpenAI's API and in the servers that extend it.
pub(crate) const SHARED: &[FieldRule] = &[
    hint("metadata", Object),
    hint("store", Flag),
    FieldRule { neutral: Words(&["auto", "default"]), ..hint("service_tier", Text) },
    hint("prompt_cache_key", Text),
    hint("prompt_cache_retention", Text),
    hint("priority", Number),
    hint("request_id", Text),
    hint("id_slot", Number),
    hint("n_keep", Number),
    hint("n_discard", Number),
    hint("n_cache_reuse", Number),
    hint("timings_per_token", Flag),
    hint("return_tokens", Flag),
    hint("return_progress", Flag),
    hint("post_sampling_probs", Flag),
    hint("response_fields", List),
    FieldRule { neutral: True, ..hint("spaces_between_special_tokens", Flag) },
    refused("skip_special_tokens", Flag, True, "special tokens are not part of the output"),
    refused("lora", List, Empty, "adapters are not supported"),
    refused("min_keep", Number, Numbers(&[0.0, 1.0]), "samplers keep one token at least"),
    refused("t_max_predict_ms", Number, Numbers(&[-1.0, 0.0]), "a time limit is not supported"),
    refused("n_probs", Number, Numbers(&[0.0]), "use `logprobs`"),
    refused("use_beam_search", Flag, Empty, "beam search is not supported"),
    refused("length_penalty", Number, Numbers(&[1.0]), "beam search is not supported"),
    refused("min_tokens", Number, Numbers(&[0.0]), "a minimum length is not supported"),
    refused("include_stop_str_in_output", Flag, Empty, "stop sequences are not part of the output"),
    refused("stop_token_ids", List, Empty, "use `stop`"),
    refused("allowed_token_ids", List, Empty, NO_LISTS),
    refused("bad_words", List, Empty, NO_LISTS),
    refused("logits_processors", List, Empty, NO_LISTS),
    refused("truncate_prompt_tokens", Number, Numbers(&[0.0]), "prompts are not truncated"),
    refused("prompt_logprobs", Number, Empty, "use `echo` with `logprobs` of `/v1/completions`"),
    refused("tfs_z", Number, Numbers(&[1.0]), NO_TFS),
];

/// Fields of a chat.
pub(crate) const CHAT: &[FieldRule] = &[
    FieldRule { neutral: Words(&["medium"]), ..hint("verbosity", Text) },
    hint("prediction", Object),
    FieldRule { neutral: True, ..hint("include_reasoning", Flag) },
    refused("parse_tool_calls", Flag, True, "tool calls are always parsed"),
    FieldRule { neutral: Words(&["auto", "deepseek"]), ..hint("reasoning_format", Text) },
    hint("mm_processor_kwargs", Object),
    refused("audio", Object, Empty, NO_AUDIO),
    refused("functions", List, Empty, "use `tools`"),
    refused("function_call", Any, Words(&["auto", "none"]), "use `tool_choice`"),
    refused("web_search_options", Object, Empty, "no model here searches the web"),
    refused("chat_template", Text, Empty, "a model has its own chat template"),
    refused("documents", List, Empty, "put the documents into a message"),
    refused("suffix", Text, Empty, "a chat has no text after the answer"),
];

/// Fields of a completion.
pub(crate) const COMPLETION: &[FieldRule] =
    &[refused("suffix", Text, Empty, "text before a suffix is not supported")];

/// Fields of a response.
pub(crate) const RESPONSE: &[FieldRule] = &[
    hint("context_management", Any),
    hint("moderation", Any),
    hint("max_tool_calls", Number),
    hint("prompt_cache_options", Object),
    hint("prompt_cache_key", Text),
    FieldRule { neutral: Words(&["in_memory"]), ..hint("prompt_cache_retention", Text) },
    FieldRule { neutral: Words(&["disabled"]), ..hint("truncation", Text) },
    FieldRule { neutral: Words(&["auto", "default"]), ..hint("service_tier", Text) },
    hint("client_metadata", Object),
    refused("background", Flag, Empty, "an answer is computed while its client waits"),
    refused("conversation", Any, Empty, NO_CONVERSATIONS),
    refused("prompt", Object, Empty, "prompt templates are not stored here"),
];

/// Fields of a request of Anthropic's API.
pub(crate) const MESSAGES: &[FieldRule] = &[
    hint("context_management", Object),
    hint("diagnostics", Any),
    hint("inference_geo", Any),
    hint("betas", List),
    FieldRule { neutral: Words(&["standard"]), ..hint("speed", Text) },
    FieldRule { neutral: Words(&["auto", "standard_only"]), ..hint("service_tier", Text) },
    refused("container", Any, Empty, "there are no containers"),
    refused("n", Number, Numbers(&[1.0]), "one answer is returned"),
    refused("mcp_servers", List, Empty, "the server calls no tools itself"),
];

/// Fields of a request of Ollama's API.
pub(crate) const OLLAMA: &[FieldRule] = &[
    hint("truncate", Flag),
    hint("shift", Flag),
    refused("logprobs", Flag, Empty, "use `/v1/chat/completions`"),
    refused("top_logprobs", Number, Numbers(&[0.0]), "use `/v1/chat/completions`"),
];

/// Further fields of `/api/generate`.
pub(crate) const OLLAMA_GENERATE: &[FieldRule] = &[
    refused("images", List, Empty, "no model here sees images"),
    refused("suffix", Text, Empty, "text before a suffix is not supported"),
    refused("template", Text, Empty, "a model has its own template"),
    refused("context", List, Empty, "send the whole prompt: what was computed before is found"),
];

/// Options of Ollama's API. Most of them place a model in memory, which the server's start decided.
pub(crate) const OLLAMA_OPTIONS: &[FieldRule] = &[
    refused("tfs_z", Number, Numbers(&[1.0]), NO_TFS),
    hint("num_gpu", Number),
    hint("main_gpu", Number),
    hint("num_thread", Number),
    hint("num_batch", Number),
    hint("num_keep", Number),
    hint("use_mmap", Flag),
    hint("use_mlock", Flag),
    hint("low_vram", Flag),
    hint("f16_kv", Flag),
    hint("vocab_only", Flag),
    hint("numa", Flag),
    FieldRule { neutral: True, ..hint("penalize_newline", Flag) },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field_path::{FieldPath, IgnoredFields};
    use serde_json::json;

    const TABLES: [&[FieldRule]; 8] =
        [SHARED, CHAT, COMPLETION, RESPONSE, MESSAGES, OLLAMA, OLLAMA_GENERATE, OLLAMA_OPTIONS];

    fn rules() -> impl Iterator<Item = &'static FieldRule> {
        TABLES.into_iter().flatten()
    }

    fn value_of(kind: Kind) -> Value {
        match kind {
            Any | Object => json!({ "x": 1 }),
            Flag => json!(true),
            Number => json!(7.25),
            Text => json!("x"),
            List => json!([1]),
        }
    }

    /// Applies one rule to one value, and returns the ignored names.
    fn outcome(rule: &FieldRule, value: Value) -> Result<Vec<String>, ApiError> {
        let ignored = IgnoredFields::default();
        let place = FieldPath::request(ignored.clone());
        let mut fields = Fields::new(place, json!({ (rule.name): value })).unwrap();
        apply(&mut fields, &[*rule])?;
        Ok(ignored.report(&mut axum::http::Response::new(())))
    }

    #[test]
    fn hints_are_reported_and_other_fields_refused_by_name() {
        for rule in rules() {
            let value =
                if matches!(rule.neutral, True) { json!(false) } else { value_of(rule.kind) };
            let found = outcome(rule, value);
            match rule.class {
                Class::Hint => assert_eq!(found.unwrap(), [rule.name]),
                Class::Refused(why) => {
                    let error = found.unwrap_err();
                    assert_eq!(error.param.as_deref(), Some(rule.name));
                    assert_eq!(error.message, why);
                }
            }
        }
    }

    #[test]
    fn neutral_values_pass_without_a_report() {
        for rule in rules() {
            let neutral = match rule.neutral {
                Empty => json!(null),
                True => json!(true),
                Numbers(numbers) => json!(numbers[0]),
                Words(words) => json!(words[0]),
            };
            assert!(outcome(rule, neutral).unwrap().is_empty(), "{}", rule.name);
            assert!(outcome(rule, json!(null)).unwrap().is_empty(), "{}", rule.name);
        }
    }

    #[test]
    fn wrong_types_are_refused() {
        for rule in rules().filter(|rule| rule.kind != Any) {
            let wrong = if rule.kind == Text { json!(1) } else { json!("x") };
            let error = outcome(rule, wrong).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(rule.name));
            assert_eq!(error.message, rule.kind.expected());
        }
    }
}
