//! How an answer is generated.
#![expect(unsafe_code, reason = "structs and texts of C are read")]
#![expect(
    clippy::missing_safety_doc,
    reason = "the header's introduction says what callers promise"
)]

use std::ffi::c_char;
use std::sync::Arc;
use std::time::Duration;

use nestling::guide::{Guide, GuideError, ToolChoice, ToolGuide};
use nestling::{ConstraintSource, GenerateOptions, SamplerKind, SamplingOptions, ToolSchema};

use crate::error::Failure;
use crate::sized::SizedStruct;
use crate::{given, model};

/// Bias of a token's logit.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct NestlingLogitBias {
    /// Token id.
    pub token: u32,
    /// Number that is added to the logit; -INFINITY excludes the token.
    pub bias: f32,
}

/// How one answer is generated. Set by nestling_generate_options_init; change what differs. The same options do for any
/// number of answers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NestlingGenerateOptions {
    /// sizeof of this struct.
    pub size: usize,
    /// Maximum number of tokens to generate; negative means until the model ends or the context is full. With 0, the
    /// prompt is computed and retained.
    pub max_tokens: i64,
    /// Divides the logits; 0 is the likeliest token always; NAN is the model's own.
    pub temperature: f32,
    /// Probability that stays in the draw; 1 is all; NAN is the model's own.
    pub top_p: f32,
    /// Least probability relative to the best token; 0 is none; NAN is the model's own.
    pub min_p: f32,
    /// Above 1 makes tokens of prompt and answer less likely; NAN is the model's own.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens in the answer; NAN is the model's own.
    pub presence_penalty: f32,
    /// Subtracted for each time that a token is in the answer; NAN is the model's own.
    pub frequency_penalty: f32,
    /// Tokens that stay in the draw; 0 is all; negative is the model's own.
    pub top_k: i64,
    /// Makes draws repeatable; NULL is another seed each time.
    pub seed: *const u64,
    /// Number of likeliest tokens in `top` of each token's event. From 0, each token has an event with its `log_prob`;
    /// negative means no log-probabilities.
    pub top_logprobs: i32,
    /// Nonzero requests an event for each token.
    pub token_events: u32,
    /// The model's own end tokens are tokens like others where not 0.
    pub ignore_end: u32,
    /// Level in bits, at most the one that the model was opened with; 0 means that level.
    pub level: u32,
    /// Texts that end the answer and are not part of it.
    pub stop: *const *const c_char,
    /// How many of them.
    pub stop_count: usize,
    /// The answer is JSON of this schema; NULL is any. At most one of the four forms may be given.
    pub json_schema: *const c_char,
    /// The answer matches this regular expression.
    pub regex: *const c_char,
    /// The answer matches this grammar, in Lark's syntax or in GBNF, llama.cpp's format.
    pub lark: *const c_char,
    /// Whether the model calls a tool: "auto", "none", "required", or the name of one that it calls; NULL is "auto".
    pub tool_choice: *const c_char,
    /// Deadline of the first token in milliseconds; 0 means none.
    pub deadline_ms: u64,
    /// Generations with a greater number go first; -128 to 127.
    pub priority: i32,
    /// Unused; must be 0.
    pub reserved: u32,
    /// Salt of the prefix cache: only generations with equal salts share prefixes. NULL is a salt, too.
    pub cache_salt: *const c_char,
    /// Probability of the tokens whose surprise is closest to the entropy, above 0 to 1; 1 is off; NAN is the model's own.
    pub typical_p: f32,
    /// Maximum distance from the best logit in standard deviations; 0 or less is off; NAN is the model's own.
    pub top_n_sigma: f32,
    /// Probability of applying XTC, 0 to 1; 0 is off; NAN is the model's own.
    pub xtc_probability: f32,
    /// Minimum probability of the tokens that XTC considers, 0 to 1; default 0.1; above 0.5 is off; NAN is the model's
    /// own.
    pub xtc_threshold: f32,
    /// Factor of the DRY penalty, from 0; 0 is off; NAN is the model's own.
    pub dry_multiplier: f32,
    /// Base of the DRY penalty, default 1.75; below 1 is off; NAN is the model's own.
    pub dry_base: f32,
    /// Length in tokens of a repetition that DRY penalizes, default 2; negative is the model's own.
    pub dry_allowed_length: i32,
    /// Number of latest tokens that DRY scans, default -1: all; 0 is off; INT32_MIN is the model's own.
    pub dry_penalty_last_n: i32,
    /// Number of latest tokens that the three penalties count, default -1: all; 0 is off; INT32_MIN is the model's own.
    pub repeat_last_n: i32,
    /// Version of mirostat: 0 is off; 2 replaces all samplers but the temperature; negative is the model's own.
    pub mirostat: i32,
    /// Target surprise of mirostat in bits, from 0; default 5; NAN is the model's own.
    pub mirostat_tau: f32,
    /// Learning rate of mirostat, from 0; default 0.1; NAN is the model's own.
    pub mirostat_eta: f32,
    /// Half of the width of the dynamic temperature's interval, from 0; 0 is off; NAN is the model's own.
    pub dynatemp_range: f32,
    /// Exponent of the dynamic temperature, from 0; default 1; NAN is the model's own.
    pub dynatemp_exponent: f32,
    /// Texts of 1 to 40 bytes that end a repetition for DRY, at most 32; NULL is the model's own: newline, colon, double
    /// quote, asterisk.
    pub dry_sequence_breakers: *const *const c_char,
    /// Number of sequence breakers.
    pub dry_sequence_breaker_count: usize,
    /// Names of the samplers in their order, separated by semicolons, such as "top_k;temperature"; NULL is the default
    /// order.
    pub samplers: *const c_char,
    /// Tokens that end the answer, besides the model's own. A token outside the vocabulary is an error.
    pub stop_tokens: *const u32,
    /// Number of stop tokens.
    pub stop_token_count: usize,
    /// Biases of logits. A token outside the vocabulary is an error.
    pub logit_bias: *const NestlingLogitBias,
    /// Number of biases; 0 means the model's own.
    pub logit_bias_count: usize,
    /// Index of the first prompt token that `prompt_logprobs` reports.
    pub prompt_logprobs_from: usize,
    /// Number of likeliest tokens in `top` of each prompt token's event. From 0, each token of the prompt has an event with
    /// its `log_prob`, and the prompt is computed from there on even if it is cached; negative means no events.
    pub prompt_logprobs: i32,
    /// Unused; must be 0.
    pub reserved_end: u32,
}

// SAFETY: `repr(C)`, the size first, then numbers and pointers.
unsafe impl SizedStruct for NestlingGenerateOptions {
    fn unset() -> Self {
        let none = std::ptr::null();
        Self {
            size: size_of::<Self>(),
            max_tokens: -1,
            temperature: f32::NAN,
            top_p: f32::NAN,
            min_p: f32::NAN,
            repetition_penalty: f32::NAN,
            presence_penalty: f32::NAN,
            frequency_penalty: f32::NAN,
            top_k: -1,
            seed: std::ptr::null(),
            top_logprobs: -1,
            token_events: 0,
            ignore_end: 0,
            level: 0,
            stop: std::ptr::null(),
            stop_count: 0,
            json_schema: none,
            regex: none,
            lark: none,
            tool_choice: none,
            deadline_ms: 0,
            priority: 0,
            reserved: 0,
            cache_salt: none,
            typical_p: f32::NAN,
            top_n_sigma: f32::NAN,
            xtc_probability: f32::NAN,
            xtc_threshold: f32::NAN,
            dry_multiplier: f32::NAN,
            dry_base: f32::NAN,
            dry_allowed_length: -1,
            dry_penalty_last_n: i32::MIN,
            repeat_last_n: i32::MIN,
            mirostat: -1,
            mirostat_tau: f32::NAN,
            mirostat_eta: f32::NAN,
            dynatemp_range: f32::NAN,
            dynatemp_exponent: f32::NAN,
            dry_sequence_breakers: std::ptr::null(),
            dry_sequence_breaker_count: 0,
            samplers: none,
            stop_tokens: std::ptr::null(),
            stop_token_count: 0,
            logit_bias: std::ptr::null(),
            logit_bias_count: 0,
            prompt_logprobs_from: 0,
            prompt_logprobs: -1,
            reserved_end: 0,
        }
    }
}

/// Options with every default. `size` is sizeof(nestling_generate_options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_generate_options_init(
    options: *mut NestlingGenerateOptions,
    size: usize,
) {
    // SAFETY: the caller gives the size of what it points to.
    unsafe { crate::sized::init(options, size) };
}

/// Constraint on the answer.
type AnswerConstraint = Arc<dyn ConstraintSource>;

impl NestlingGenerateOptions {
    /// The engine's options, and whether the model may call `tools`.
    ///
    /// # Safety
    /// What the options point to is valid until this returns.
    pub(crate) unsafe fn read(
        &self,
        tools: &[ToolSchema],
    ) -> Result<(GenerateOptions, ToolChoice), Failure> {
        let mut options = GenerateOptions {
            max_tokens: usize::try_from(self.max_tokens).ok(),
            token_events: self.token_events != 0,
            ignore_end: self.ignore_end != 0,
            level: model::level(self.level)?,
            prompt_logprobs: usize::try_from(self.prompt_logprobs).ok(),
            prompt_logprobs_from: self.prompt_logprobs_from,
            deadline: (self.deadline_ms > 0).then(|| Duration::from_millis(self.deadline_ms)),
            priority: i8::try_from(self.priority)
                .map_err(|_| Failure::caller(format!("priority: {}", self.priority)))?,
            ..GenerateOptions::default()
        };
        // SAFETY: as the caller says.
        let (form, choice) = unsafe {
            options.sampling = self.sampling()?;
            options.stop = given::texts("stop", self.stop, self.stop_count)?;
            options.stop_tokens =
                given::slice("stop_tokens", self.stop_tokens, self.stop_token_count)?.to_vec();
            options.cache_salt = given::optional("cache_salt", self.cache_salt)?.map(str::to_owned);
            (self.form()?, self.choice(tools)?)
        };
        let calls = !choice.tools(tools).is_empty();
        options.constraint = match form {
            Some(_) if calls => {
                let both = "a form of the answer and tools: one of them, or tool_choice \"none\"";
                return Err(Failure::caller(both));
            }
            None if calls => {
                Some(Arc::new(ToolGuide::new(tools, choice.clone()).map_err(refused)?))
            }
            form => form,
        };
        Ok((options, choice))
    }

    /// # Safety
    /// As [`Self::read`].
    unsafe fn sampling(&self) -> Result<SamplingOptions, Failure> {
        let said = |value: f32| (!value.is_nan()).then_some(value);
        let window = |value: i32| (value != i32::MIN).then_some(value);
        // SAFETY: as the caller says.
        let (seed, samplers, breakers) = unsafe {
            let breakers = (!self.dry_sequence_breakers.is_null()).then(|| {
                let count = self.dry_sequence_breaker_count;
                given::texts("dry_sequence_breakers", self.dry_sequence_breakers, count)
            });
            let samplers = given::optional("samplers", self.samplers)?;
            (self.seed.as_ref().copied(), samplers, breakers.transpose()?)
        };
        // SAFETY: as the caller says.
        let biases = unsafe { given::slice("logit_bias", self.logit_bias, self.logit_bias_count) }?;
        let biases = biases.iter().map(|one| (one.token, one.bias));
        let samplers = samplers.map(SamplerKind::parse_list).transpose();
        Ok(SamplingOptions {
            temperature: said(self.temperature),
            top_k: usize::try_from(self.top_k).ok(),
            top_p: said(self.top_p),
            min_p: said(self.min_p),
            typical_p: said(self.typical_p),
            top_n_sigma: said(self.top_n_sigma),
            xtc_probability: said(self.xtc_probability),
            xtc_threshold: said(self.xtc_threshold),
            dry_multiplier: said(self.dry_multiplier),
            dry_base: said(self.dry_base),
            dry_allowed_length: u32::try_from(self.dry_allowed_length).ok(),
            dry_penalty_last_n: window(self.dry_penalty_last_n),
            dry_sequence_breakers: breakers,
            mirostat: u32::try_from(self.mirostat).ok(),
            mirostat_tau: said(self.mirostat_tau),
            mirostat_eta: said(self.mirostat_eta),
            dynatemp_range: said(self.dynatemp_range),
            dynatemp_exponent: said(self.dynatemp_exponent),
            repetition_penalty: said(self.repetition_penalty),
            presence_penalty: said(self.presence_penalty),
            frequency_penalty: said(self.frequency_penalty),
            repeat_last_n: window(self.repeat_last_n),
            samplers: samplers.map_err(|error| Failure::caller(error.to_string()))?,
            logit_bias: (biases.len() > 0).then(|| biases.collect()),
            seed,
            top_logprobs: usize::try_from(self.top_logprobs).ok(),
        })
    }

    /// The form that the answer has.
    ///
    /// # Safety
    /// As [`Self::read`].
    unsafe fn form(&self) -> Result<Option<AnswerConstraint>, Failure> {
        // SAFETY: as the caller says.
        let (schema, regex, lark) = unsafe {
            (
                given::optional("json_schema", self.json_schema)?,
                given::optional("regex", self.regex)?,
                given::optional("lark", self.lark)?,
            )
        };
        let guide = match (schema, regex, lark) {
            (None, None, None) => return Ok(None),
            (Some(schema), None, None) => Guide::json_schema_text(schema),
            (None, Some(regex), None) => Guide::regex(regex),
            (None, None, Some(lark)) => Guide::grammar(lark),
            _ => {
                let several = "at most one of json_schema, regex and lark may be given";
                return Err(Failure::caller(several));
            }
        };
        Ok(Some(Arc::new(guide.map_err(refused)?)))
    }

    /// # Safety
    /// As [`Self::read`].
    unsafe fn choice(&self, tools: &[ToolSchema]) -> Result<ToolChoice, Failure> {
        // SAFETY: as the caller says.
        let choice = unsafe { given::optional("tool_choice", self.tool_choice) }?;
        let choice = ToolChoice::of_name(choice);
        if choice.must_call() && tools.is_empty() {
            return Err(Failure::caller("tool_choice: the conversation has no tools"));
        }
        Ok(choice)
    }
}

fn refused(error: GuideError) -> Failure {
    Failure::caller(error.to_string())
}
