//! Request fields common to several APIs: sampling, stop sequences and streaming.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;

use nestling::{GenerateOptions, Model, SamplingParams};
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{
    BIASES_MAX, CHOICES_MAX, EVENTS_MAX, STOP_BYTES_MAX, STOPS_MAX, TEXT_BYTES_MAX, TOKENS_MAX,
};
use crate::server::ServedModel;
use crate::usage::random;

/// Fields common to chats and completions.
pub(crate) struct CommonFields {
    pub options: GenerateOptions,
    pub sampling: SamplingParams,
    /// Number of choices per prompt.
    pub choices: usize,
    /// True if idle sessions may be reused and the sessions of this request are kept.
    pub keeps_sessions: bool,
    pub stream: bool,
    pub include_usage: bool,
}

impl CommonFields {
    /// # Errors
    /// Returns an error for the first invalid field or an unknown model.
    pub fn take(fields: &mut Fields, served: &ServedModel) -> Result<Self, ApiError> {
        check_model(fields, served)?;
        let sampling = sampling(fields, &served.model)?;
        // Default: one choice, as the API specifies.
        let choices = fields.integer("n", 1..=CHOICES_MAX)?.unwrap_or(1);
        let choices = usize::try_from(choices).ok().filter(|n| *n <= served.choices_max);
        let choices = choices.ok_or_else(|| {
            let most = served.choices_max;
            fields.invalid("n", format!("this server gives at most {most} answers to a prompt"))
        })?;
        // Default: no streaming, as the API specifies, and sessions are kept.
        let stream = fields.flag("stream")?.unwrap_or(false);
        let keeps_sessions = fields.flag("cache_prompt")?.unwrap_or(true);
        let include_usage = include_usage(fields, stream)?;
        let group = fields.text("user", TEXT_BYTES_MAX)?.map(|user| group_of(&user));
        let options = GenerateOptions {
            stop: stop(fields)?,
            group,
            // A random salt is unique, so that no prefix is shared.
            cache_salt: (!keeps_sessions).then(|| format!("{:016x}{:016x}", random(), random())),
            // Default: generation stops at an end token.
            ignore_end: fields.flag("ignore_eos")?.unwrap_or(false),
            ..counted()
        };
        Ok(Self { options, sampling, choices, keeps_sessions, stream, include_usage })
    }

    /// Returns the options including sampling.
    pub fn into_options(self) -> GenerateOptions {
        GenerateOptions { sampling: self.sampling.into(), ..self.options }
    }
}

/// Returns options with token events and a buffer for slow clients.
pub(crate) fn counted() -> GenerateOptions {
    GenerateOptions { token_events: true, events_max: EVENTS_MAX, ..GenerateOptions::default() }
}

/// Returns the fair-share group of a user.
pub(crate) fn group_of(user: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    user.hash(&mut hasher);
    hasher.finish()
}

/// # Errors
/// Returns an error if `model` is missing or is not the served model.
pub(crate) fn check_model(fields: &mut Fields, served: &ServedModel) -> Result<(), ApiError> {
    let id = fields.required_text("model", TEXT_BYTES_MAX)?;
    if id == served.id { Ok(()) } else { Err(ApiError::no_model(&id, &served.id)) }
}

/// Reads a limit on tokens.
///
/// # Errors
/// Returns an error if the value is not an integer of at least `least`.
pub(crate) fn tokens_max(
    fields: &mut Fields,
    name: &str,
    least: u64,
) -> Result<Option<usize>, ApiError> {
    let tokens = fields.integer(name, least..=TOKENS_MAX)?;
    Ok(tokens.and_then(|tokens| usize::try_from(tokens).ok()))
}

fn include_usage(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(mut options) = fields.object("stream_options")? else { return Ok(false) };
    if !stream {
        let message = "`stream_options` requires `stream`";
        return Err(fields.invalid("stream_options", message));
    }
    // Default: usage is only sent on request, as the API specifies.
    let include_usage = options.flag("include_usage")?.unwrap_or(false);
    options.end()?;
    Ok(include_usage)
}

/// Reads `temperature` and `top_p`, which all APIs have. Missing values come from the model's generation
/// config.
///
/// # Errors
/// Returns an error if a value is out of range.
pub(crate) fn basic_sampling(
    fields: &mut Fields,
    model: &Model,
    temperatures: RangeInclusive<f64>,
) -> Result<SamplingParams, ApiError> {
    let mut sampling = model.default_sampling().clone();
    if let Some(temperature) = fields.number("temperature", temperatures)? {
        sampling.temperature = temperature;
    }
    if let Some(top_p) = fields.number("top_p", 0.0..=1.0)? {
        sampling.top_p = top_p;
    }
    Ok(sampling)
}

/// # Errors
/// Returns an error if the value is not an integer in range.
pub(crate) fn top_k(fields: &mut Fields, sampling: &mut SamplingParams) -> Result<(), ApiError> {
    if let Some(top_k) = fields.integer("top_k", 0..=u64::from(u32::MAX))? {
        // Default: a value that overflows means no limit.
        sampling.top_k = usize::try_from(top_k).unwrap_or(0);
    }
    Ok(())
}

/// # Errors
/// Returns an error for values that the engine rejects.
pub(crate) fn check_sampling(fields: &Fields, sampling: &SamplingParams) -> Result<(), ApiError> {
    sampling.validate().map_err(|error| fields.invalid(error.name, error.to_string()))
}

fn sampling(fields: &mut Fields, model: &Model) -> Result<SamplingParams, ApiError> {
    let mut sampling = basic_sampling(fields, model, 0.0..=2.0)?;
    top_k(fields, &mut sampling)?;
    if let Some(min_p) = fields.number("min_p", 0.0..=1.0)? {
        sampling.min_p = min_p;
    }
    if let Some(penalty) = fields.number("repetition_penalty", 0.01..=100.0)? {
        sampling.repetition_penalty = penalty;
    }
    if let Some(penalty) = fields.number("frequency_penalty", -2.0..=2.0)? {
        sampling.frequency_penalty = penalty;
    }
    if let Some(penalty) = fields.number("presence_penalty", -2.0..=2.0)? {
        sampling.presence_penalty = penalty;
    }
    if let Some(seed) = fields.take("seed") {
        // Seeds of the API may be negative. The bits of the number are used.
        let bits = seed.as_u64().or_else(|| seed.as_i64().map(i64::cast_unsigned));
        let bits = bits.ok_or_else(|| fields.invalid("seed", "a whole number was expected"))?;
        sampling.seed = Some(bits);
    }
    sampling.logit_bias = logit_bias(fields, model)?;
    check_sampling(fields, &sampling)?;
    Ok(sampling)
}

fn logit_bias(fields: &mut Fields, model: &Model) -> Result<Vec<(u32, f32)>, ApiError> {
    let name = "logit_bias";
    let Some(value) = fields.take(name) else { return Ok(Vec::new()) };
    let Value::Object(map) = value else {
        return Err(fields.invalid(name, "an object of token ids was expected"));
    };
    if map.len() > BIASES_MAX {
        return Err(
            fields.invalid(name, format!("at most {BIASES_MAX} tokens, found {}", map.len()))
        );
    }
    let vocab_size = model.limits().vocab_size;
    let mut biases = Vec::with_capacity(map.len());
    for (token, bias) in &map {
        let place = format!("{name}.{token}");
        let id = token.parse::<u32>().ok().filter(|id| (*id as usize) < vocab_size);
        let id = id.ok_or_else(|| {
            fields.invalid(&place, format!("a token id below {vocab_size} was expected"))
        })?;
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        let bias =
            bias.ok_or_else(|| fields.invalid(&place, "a number from -100 to 100 was expected"))?;
        // A bias of -100 bans a token, as the API specifies.
        biases.push((id, if bias == -100.0 { f32::NEG_INFINITY } else { bias as f32 }));
    }
    Ok(biases)
}

/// Reads the stop sequences.
///
/// # Errors
/// Returns an error if there are too many or one is not a valid string.
pub(crate) fn stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let name = "stop";
    let texts = match fields.take(name) {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![Value::String(text)],
        Some(Value::Array(texts)) => texts,
        Some(_) => return Err(fields.invalid(name, "a text or a list of texts was expected")),
    };
    stop_texts(fields, name, texts, STOPS_MAX)
}

/// Checks stop sequences.
///
/// # Errors
/// Returns an error if there are too many, or one is not a string or is too long.
pub(crate) fn stop_texts(
    fields: &Fields,
    name: &str,
    texts: Vec<Value>,
    count_max: usize,
) -> Result<Vec<String>, ApiError> {
    if texts.len() > count_max {
        return Err(
            fields.invalid(name, format!("at most {count_max} texts, found {}", texts.len()))
        );
    }
    let is_good = |text: &String| !text.is_empty() && text.len() <= STOP_BYTES_MAX;
    let texts = texts.into_iter().map(|text| match text {
        Value::String(text) if is_good(&text) => Ok(text),
        _ => {
            Err(fields.invalid(name, format!("texts of 1 to {STOP_BYTES_MAX} bytes were expected")))
        }
    });
    texts.collect()
}
