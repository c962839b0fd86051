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
use nestling::{ConstraintSource, GenerateOptions, SamplingOptions, ToolSchema};

use crate::error::Failure;
use crate::sized::SizedStruct;
use crate::{given, model};

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
    /// Number of most likely tokens whose log-probabilities are computed for each token; negative means none.
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
    /// The answer is derived from this grammar of Lark's.
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
            deadline: (self.deadline_ms > 0).then(|| Duration::from_millis(self.deadline_ms)),
            priority: i8::try_from(self.priority)
                .map_err(|_| Failure::caller(format!("priority: {}", self.priority)))?,
            ..GenerateOptions::default()
        };
        // SAFETY: as the caller says.
        let (form, choice) = unsafe {
            options.sampling = self.sampling();
            options.stop = given::texts("stop", self.stop, self.stop_count)?;
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
    unsafe fn sampling(&self) -> SamplingOptions {
        let said = |value: f32| (!value.is_nan()).then_some(value);
        SamplingOptions {
            temperature: said(self.temperature),
            top_k: usize::try_from(self.top_k).ok(),
            top_p: said(self.top_p),
            min_p: said(self.min_p),
            repetition_penalty: said(self.repetition_penalty),
            presence_penalty: said(self.presence_penalty),
            frequency_penalty: said(self.frequency_penalty),
            logit_bias: None,
            // SAFETY: NULL, or a number, as the caller says.
            seed: unsafe { self.seed.as_ref() }.copied(),
            top_logprobs: usize::try_from(self.top_logprobs).ok(),
        }
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
            (None, None, Some(lark)) => Guide::lark(lark),
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
        let choice = match unsafe { given::optional("tool_choice", self.tool_choice) }? {
            None | Some("auto") => ToolChoice::Auto,
            Some("none") => ToolChoice::None,
            Some("required") => ToolChoice::Required,
            Some(name) => ToolChoice::Named(name.to_owned()),
        };
        match choice {
            ToolChoice::Required | ToolChoice::Named(_) if tools.is_empty() => {
                Err(Failure::caller("tool_choice: the conversation has no tools"))
            }
            choice => Ok(choice),
        }
    }
}

fn refused(error: GuideError) -> Failure {
    Failure::caller(error.to_string())
}
