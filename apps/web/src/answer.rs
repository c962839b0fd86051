//! Options, events and summaries of answers.

use std::sync::Arc;

use nestling::guide::{Guide, GuideError, ToolChoice, ToolGuide};
use nestling::{
    ConstraintSource, Event, FinishReason, GenerateOptions, GenerationSummary, SamplingOptions,
    ToolSchema,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::TabError;

/// Options of one answer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AnswerOptions {
    /// Maximum number of tokens.
    pub max_tokens: Option<usize>,
    /// Sampling temperature; 0 chooses the likeliest token.
    pub temperature: Option<f32>,
    /// Number of likeliest tokens to sample from.
    pub top_k: Option<usize>,
    /// Probability mass of the likeliest tokens to sample from.
    pub top_p: Option<f32>,
    /// Least probability of a sampled token, as a share of the likeliest token's.
    pub min_p: Option<f32>,
    /// Seed of the sampler.
    pub seed: Option<u64>,
    /// Stop strings.
    pub stop: Vec<String>,
    /// True to treat the model's end tokens as ordinary tokens.
    pub ignore_end: bool,
    /// True to report each token.
    pub token_events: bool,
    /// JSON schema that the answer must match.
    pub json_schema: Option<Value>,
    /// Regular expression that the answer must match.
    pub regex: Option<String>,
    /// GBNF grammar that the answer must match.
    pub grammar: Option<String>,
    /// "auto", "none", "required" or the name of a tool.
    pub tool_choice: Option<String>,
}

impl AnswerOptions {
    /// Converts the options for a conversation with `tools`, and returns the choice among these.
    ///
    /// # Errors
    /// Fails with [`TabError::Invalid`] if a form or a choice is invalid.
    pub fn options(self, tools: &[ToolSchema]) -> Result<AskedOptions, TabError> {
        let choice = choice(self.tool_choice.as_deref(), tools)?;
        let calls = !choice.tools(tools).is_empty();
        let constraint = match self.form()? {
            Some(_) if calls => {
                let reason = "it cannot be combined with tools; give toolChoice \"none\"";
                return Err(invalid("form of the answer", reason));
            }
            None if calls => {
                let guide = ToolGuide::new(tools, choice.clone()).map_err(refused)?;
                Some(Arc::new(guide) as Arc<dyn ConstraintSource>)
            }
            form => form,
        };
        let sampling = SamplingOptions {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            seed: self.seed,
            ..SamplingOptions::default()
        };
        let options = GenerateOptions {
            sampling,
            max_tokens: self.max_tokens,
            stop: self.stop,
            ignore_end: self.ignore_end,
            token_events: self.token_events,
            constraint,
            ..GenerateOptions::default()
        };
        Ok(AskedOptions { options, tools: choice.tools(tools).to_vec() })
    }

    fn form(&self) -> Result<Option<Arc<dyn ConstraintSource>>, TabError> {
        let guide = match (&self.json_schema, &self.regex, &self.grammar) {
            (None, None, None) => return Ok(None),
            (Some(schema), None, None) => Guide::json_schema(schema),
            (None, Some(regex), None) => Guide::regex(regex),
            (None, None, Some(grammar)) => Guide::grammar(grammar),
            _ => {
                let reason = "at most one of jsonSchema, regex and grammar may be given";
                return Err(invalid("form of the answer", reason));
            }
        };
        Ok(Some(Arc::new(guide.map_err(refused)?)))
    }
}

/// Converted options of an answer.
#[derive(Debug)]
pub struct AskedOptions {
    /// Options of the engine.
    pub options: GenerateOptions,
    /// Tools that the model sees.
    pub tools: Vec<ToolSchema>,
}

fn choice(said: Option<&str>, tools: &[ToolSchema]) -> Result<ToolChoice, TabError> {
    let choice = ToolChoice::of_name(said);
    if choice.must_call() && tools.is_empty() {
        return Err(invalid("toolChoice", "the conversation has no tools"));
    }
    Ok(choice)
}

fn invalid(what: &'static str, reason: &str) -> TabError {
    TabError::Invalid { what, reason: reason.into() }
}

fn refused(error: GuideError) -> TabError {
    TabError::Invalid { what: "form of the answer", reason: error.to_string() }
}

/// Progress of an answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Step {
    /// A step was computed without output.
    Pending,
    /// Further text.
    Text {
        /// Whole characters.
        text: String,
    },
    /// Further text of the reasoning before the answer.
    Reasoning {
        /// Whole characters.
        text: String,
    },
    /// A token, if the options ask for tokens. Its text follows.
    Token {
        /// Id of the token.
        token: u32,
    },
    /// The start of a tool call.
    ToolCallStart {
        /// Index among the tool calls of the answer.
        index: usize,
        /// Id of the call.
        id: String,
        /// Name of the tool.
        name: String,
    },
    /// Further arguments of the tool call that was started last.
    ToolCallArguments {
        /// Index of the call.
        index: usize,
        /// Further JSON text.
        delta: String,
    },
    /// A complete tool call.
    ToolCall {
        /// Id of the call.
        id: String,
        /// Name of the tool.
        name: String,
        /// Arguments as JSON text.
        arguments: String,
    },
    /// The end of the answer.
    Finished {
        /// Result of the answer.
        summary: Summary,
    },
}

impl Step {
    /// Converts an event of an answer at a level, given in bits.
    pub fn of(event: Event, level: u8) -> Self {
        match event {
            Event::Text(text) => Self::Text { text },
            Event::Reasoning(text) => Self::Reasoning { text },
            Event::Token(event) => Self::Token { token: event.token },
            Event::ToolCallStart { index, id, name } => Self::ToolCallStart { index, id, name },
            Event::ToolCallArguments { index, delta } => Self::ToolCallArguments { index, delta },
            Event::ToolCall(call) => {
                let arguments = call.arguments_text();
                Self::ToolCall { id: call.id, name: call.name, arguments }
            }
            Event::Finished(summary) => Self::Finished { summary: Summary::of(&summary, level) },
            _ => Self::Pending,
        }
    }
}

/// Summary of an answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// "stop", "length", "context", "toolCalls" or "cancelled".
    pub reason: &'static str,
    /// Level of the answer in bits; 0 for a file without levels.
    pub level: u8,
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
    /// Number of tokens of the answer.
    pub answer_tokens: usize,
    /// Tokens per second after the first one; 0 for a single token.
    pub tokens_per_second: f64,
}

impl Summary {
    fn of(summary: &GenerationSummary, level: u8) -> Self {
        let stats = &summary.stats;
        let has_speed = stats.decode_seconds > 0.0;
        Self {
            reason: match summary.reason {
                FinishReason::Length => "length",
                FinishReason::ContextFull => "context",
                FinishReason::ToolCalls => "toolCalls",
                FinishReason::Cancelled => "cancelled",
                _ => "stop",
            },
            level,
            prompt_tokens: summary.usage.prompt_tokens,
            answer_tokens: summary.usage.completion_tokens,
            tokens_per_second: match has_speed {
                true => stats.decode_tokens as f64 / stats.decode_seconds,
                false => 0.0,
            },
        }
    }
}
