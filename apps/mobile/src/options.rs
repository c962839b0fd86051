//! Options of generations.

use std::sync::Arc;
use std::time::Duration;

use nestling::formats::Level;
use nestling::guide::{Guide, GuideError, ToolChoice, ToolGuide};
use nestling::{ConstraintSource, HiddenRows, SamplingOptions, ToolSchema};

use crate::error::NestlingError;

/// Bias of one token.
#[derive(Clone, Debug, PartialEq, uniffi::Record)]
pub struct LogitBias {
    /// Token id.
    pub token: u32,
    /// Number added to the logit. Minus infinity forbids the token.
    pub bias: f32,
}

/// Prompt tokens whose hidden rows are events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, uniffi::Enum)]
pub enum Hidden {
    /// The last token.
    Last,
    /// All tokens.
    All,
}

/// Sampling options. Unset fields take the model's own (`generation_config.json`).
#[derive(Clone, Debug, Default, PartialEq, uniffi::Record)]
pub struct Sampling {
    /// Maximum number of tokens to draw from; 0 is all.
    #[uniffi(default)]
    pub top_k: Option<u32>,
    /// Probability mass to draw from.
    #[uniffi(default)]
    pub top_p: Option<f64>,
    /// Minimum probability, relative to the likeliest token.
    #[uniffi(default)]
    pub min_p: Option<f64>,
    /// Mass of locally typical sampling.
    #[uniffi(default)]
    pub typical_p: Option<f64>,
    /// Distance from the best logit, in standard deviations.
    #[uniffi(default)]
    pub top_n_sigma: Option<f64>,
    /// Probability of excluding top choices.
    #[uniffi(default)]
    pub xtc_probability: Option<f64>,
    /// Minimum probability of an excluded top choice.
    #[uniffi(default)]
    pub xtc_threshold: Option<f64>,
    /// Factor of the DRY penalty; 0 is off.
    #[uniffi(default)]
    pub dry_multiplier: Option<f64>,
    /// Base of the DRY penalty.
    #[uniffi(default)]
    pub dry_base: Option<f64>,
    /// Length of a repetition without DRY penalty, in tokens.
    #[uniffi(default)]
    pub dry_allowed_length: Option<u32>,
    /// Number of last tokens that DRY scans; -1 is all.
    #[uniffi(default)]
    pub dry_penalty_last_n: Option<i32>,
    /// Texts that end a repetition.
    #[uniffi(default)]
    pub dry_sequence_breakers: Option<Vec<String>>,
    /// Version of mirostat: 0 is off, 2 replaces the other samplers.
    #[uniffi(default)]
    pub mirostat: Option<u32>,
    /// Target surprise of mirostat, in bits.
    #[uniffi(default)]
    pub mirostat_tau: Option<f64>,
    /// Learning rate of mirostat.
    #[uniffi(default)]
    pub mirostat_eta: Option<f64>,
    /// Half of the width of the dynamic temperature's interval.
    #[uniffi(default)]
    pub dynatemp_range: Option<f64>,
    /// Exponent of the dynamic temperature.
    #[uniffi(default)]
    pub dynatemp_exponent: Option<f64>,
    /// Divisor of logits of tokens in the history.
    #[uniffi(default)]
    pub repetition_penalty: Option<f64>,
    /// Penalty of tokens in the history.
    #[uniffi(default)]
    pub presence_penalty: Option<f64>,
    /// Penalty for each occurrence in the history.
    #[uniffi(default)]
    pub frequency_penalty: Option<f64>,
    /// Number of last tokens that penalties see; -1 is all.
    #[uniffi(default)]
    pub repeat_last_n: Option<i32>,
    /// Samplers in their order.
    #[uniffi(default)]
    pub samplers: Option<Vec<String>>,
    /// Biases of tokens.
    #[uniffi(default)]
    pub logit_bias: Option<Vec<LogitBias>>,
}

/// Options of one answer. Unset fields take the model's own, or the library's defaults.
#[derive(Clone, Debug, Default, PartialEq, uniffi::Record)]
pub struct GenerateOptions {
    /// Maximum number of tokens. Without it, the answer continues until the model ends it or the context is
    /// full.
    #[uniffi(default)]
    pub max_tokens: Option<u32>,
    /// Divisor of the logits; 0 always chooses the likeliest token.
    #[uniffi(default)]
    pub temperature: Option<f64>,
    /// Seed that makes draws repeatable.
    #[uniffi(default)]
    pub seed: Option<u64>,
    /// Other sampling options.
    #[uniffi(default)]
    pub sampling: Option<Sampling>,
    /// Texts that end the answer and are not part of it.
    #[uniffi(default)]
    pub stop: Vec<String>,
    /// Tokens that end the answer, besides the model's own.
    #[uniffi(default)]
    pub stop_tokens: Vec<u32>,
    /// True to treat the model's end tokens as ordinary tokens.
    #[uniffi(default)]
    pub ignore_end: bool,
    /// True to include the text of special tokens.
    #[uniffi(default)]
    pub show_special: bool,
    /// True for an event for each token.
    #[uniffi(default)]
    pub token_events: bool,
    /// Number of likeliest tokens to report with each token, with log-probabilities.
    #[uniffi(default)]
    pub top_logprobs: Option<u32>,
    /// Number of likeliest tokens to report with each token of the prompt, with log-probabilities.
    #[uniffi(default)]
    pub prompt_logprobs: Option<u32>,
    /// Hidden rows of the prompt to report. With `max_tokens` 0 they serve as embeddings.
    #[uniffi(default)]
    pub hidden: Option<Hidden>,
    /// Bits per weight of the computation: 2, 3, 4, 6 or 8, at most those of the opened model.
    #[uniffi(default)]
    pub level: Option<u8>,
    /// Deadline of the first token, in seconds from the call.
    #[uniffi(default)]
    pub deadline: Option<f64>,
    /// Priority: greater numbers run first.
    #[uniffi(default)]
    pub priority: i8,
    /// Salt of shared prefixes.
    #[uniffi(default)]
    pub cache_salt: Option<String>,
    /// JSON schema of the answer.
    #[uniffi(default)]
    pub json_schema: Option<String>,
    /// Regular expression that the answer matches.
    #[uniffi(default)]
    pub regex: Option<String>,
    /// Grammar of the answer, in Lark's syntax or in GBNF.
    #[uniffi(default)]
    pub grammar: Option<String>,
    /// Choice of tools: `auto`, `none`, `required`, or the name of the tool to call.
    #[uniffi(default)]
    pub tool_choice: Option<String>,
}

/// Returns a count as the engine has it. Pointers have at least 32 bits on all supported systems.
pub(crate) fn count(number: u32) -> usize {
    number as usize
}

/// Returns the level of a number of bits.
pub(crate) fn level(bits: Option<u8>) -> Result<Option<Level>, NestlingError> {
    let Some(bits) = bits else { return Ok(None) };
    let wrong = || NestlingError::Caller(format!("level: expected 2, 3, 4, 6 or 8, found {bits}"));
    Level::from_bits(bits).map(Some).ok_or_else(wrong)
}

fn float(number: Option<f64>) -> Option<f32> {
    number.map(|number| number as f32)
}

impl Sampling {
    fn read(self) -> Result<SamplingOptions, NestlingError> {
        let samplers = self.samplers.map(|names| {
            let kinds = names.iter().map(|name| name.parse()).collect::<Result<Vec<_>, _>>();
            kinds.map_err(|error| NestlingError::Caller(format!("samplers: {error}")))
        });
        let biases = self.logit_bias;
        Ok(SamplingOptions {
            top_k: self.top_k.map(count),
            top_p: float(self.top_p),
            min_p: float(self.min_p),
            typical_p: float(self.typical_p),
            top_n_sigma: float(self.top_n_sigma),
            xtc_probability: float(self.xtc_probability),
            xtc_threshold: float(self.xtc_threshold),
            dry_multiplier: float(self.dry_multiplier),
            dry_base: float(self.dry_base),
            dry_allowed_length: self.dry_allowed_length,
            dry_penalty_last_n: self.dry_penalty_last_n,
            dry_sequence_breakers: self.dry_sequence_breakers,
            mirostat: self.mirostat,
            mirostat_tau: float(self.mirostat_tau),
            mirostat_eta: float(self.mirostat_eta),
            dynatemp_range: float(self.dynatemp_range),
            dynatemp_exponent: float(self.dynatemp_exponent),
            repetition_penalty: float(self.repetition_penalty),
            presence_penalty: float(self.presence_penalty),
            frequency_penalty: float(self.frequency_penalty),
            repeat_last_n: self.repeat_last_n,
            samplers: samplers.transpose()?,
            logit_bias: biases
                .map(|biases| biases.into_iter().map(|bias| (bias.token, bias.bias)).collect()),
            ..SamplingOptions::default()
        })
    }
}

impl GenerateOptions {
    /// Returns the options of the engine, with the constraint of the answer, and the choice of tools.
    pub(crate) fn read(
        self,
        tools: &[ToolSchema],
    ) -> Result<(nestling::GenerateOptions, ToolChoice), NestlingError> {
        let choice = choice(self.tool_choice.as_deref(), tools)?;
        let calls = !choice.tools(tools).is_empty();
        let constraint = match self.form()? {
            Some(_) if calls => {
                let both = "a form of the answer and tools: one of them, or tool_choice \"none\"";
                return Err(NestlingError::Caller(both.into()));
            }
            None if calls => {
                let guide = ToolGuide::new(tools, choice.clone()).map_err(refused)?;
                Some(Arc::new(guide) as Arc<dyn ConstraintSource>)
            }
            form => form,
        };
        let seconds = |seconds| {
            Duration::try_from_secs_f64(seconds)
                .map_err(|error| NestlingError::Caller(format!("deadline: {error}")))
        };
        // Default: sampling options of the model.
        let sampling = self.sampling.unwrap_or_default().read()?;
        let options = nestling::GenerateOptions {
            sampling: SamplingOptions {
                temperature: float(self.temperature),
                seed: self.seed,
                top_logprobs: self.top_logprobs.map(count),
                ..sampling
            },
            max_tokens: self.max_tokens.map(count),
            stop: self.stop,
            stop_tokens: self.stop_tokens,
            ignore_end: self.ignore_end,
            show_special: self.show_special,
            token_events: self.token_events,
            prompt_logprobs: self.prompt_logprobs.map(count),
            hidden: self.hidden.map(|hidden| match hidden {
                Hidden::Last => HiddenRows::Last,
                Hidden::All => HiddenRows::All,
            }),
            level: level(self.level)?,
            constraint,
            priority: self.priority,
            deadline: self.deadline.map(seconds).transpose()?,
            cache_salt: self.cache_salt,
            ..nestling::GenerateOptions::default()
        };
        Ok((options, choice))
    }

    /// Returns the constraint of the answer's form.
    fn form(&self) -> Result<Option<Arc<dyn ConstraintSource>>, NestlingError> {
        let guide = match (&self.json_schema, &self.regex, &self.grammar) {
            (None, None, None) => return Ok(None),
            (Some(schema), None, None) => Guide::json_schema_text(schema),
            (None, Some(regex), None) => Guide::regex(regex),
            (None, None, Some(grammar)) => Guide::grammar(grammar),
            _ => {
                let text = "at most one of json_schema, regex and grammar may be given";
                return Err(NestlingError::Caller(text.into()));
            }
        };
        Ok(Some(Arc::new(guide.map_err(refused)?)))
    }
}

fn choice(said: Option<&str>, tools: &[ToolSchema]) -> Result<ToolChoice, NestlingError> {
    let choice = ToolChoice::of_name(said);
    if choice.must_call() && tools.is_empty() {
        return Err(NestlingError::Caller("tool_choice: the conversation has no tools".into()));
    }
    Ok(choice)
}

fn refused(error: GuideError) -> NestlingError {
    NestlingError::Caller(error.to_string())
}
