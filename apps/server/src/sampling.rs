//! Request fields common to several APIs: sampling, stop sequences and streaming.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;

use nestling::{GenerateOptions, Model, SamplingOptions, SamplingParams};
use serde_json::Value;

use crate::error::ApiError;
use crate::field_rules::{self, SHARED};
use crate::fields::{Fields, seed_bits};
use crate::limits::{
    BIASES_MAX, CHOICES_MAX, EVENTS_MAX, STOP_BYTES_MAX, STOPS_MAX, TEXT_BYTES_MAX, TOKENS_MAX,
};
use crate::samplers;
use crate::server::ServedModel;
use crate::usage::random;

/// Accepted repetition penalties.
pub(crate) const PENALTIES: RangeInclusive<f64> = 0.01..=100.0;

/// Accepted temperatures, but for APIs that have a range of their own.
pub(crate) const TEMPERATURES: RangeInclusive<f64> = 0.0..=2.0;

/// Fields common to chats and completions.
pub(crate) struct CommonFields {
    pub options: GenerateOptions,
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
        field_rules::apply(fields, SHARED)?;
        let (sampling, _) = sampling(fields, &served.model, TEMPERATURES)?;
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
        let group = group(fields)?;
        let options = GenerateOptions {
            stop: stop(fields)?,
            group,
            // A random salt is unique, so that no prefix is shared.
            cache_salt: (!keeps_sessions).then(|| format!("{:016x}{:016x}", random(), random())),
            // Default: generation stops at an end token.
            ignore_end: fields.flag("ignore_eos")?.unwrap_or(false),
            sampling,
            ..counted()
        };
        Ok(Self { options, choices, keeps_sessions, stream, include_usage })
    }
}

/// Returns options with token events and a buffer for slow clients.
pub(crate) fn counted() -> GenerateOptions {
    GenerateOptions { token_events: true, events_max: EVENTS_MAX, ..GenerateOptions::default() }
}

/// Reads the fields that identify a user and returns the fair-share group.
///
/// # Errors
/// Returns an error if one is not a text or is too long.
pub(crate) fn group(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    let user = fields.text("user", TEXT_BYTES_MAX)?;
    let user = fields.text("safety_identifier", TEXT_BYTES_MAX)?.or(user);
    Ok(user.map(|user| group_of(&user)))
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
    check_name(&id, served)
}

/// Returns a model name without Ollama's tag `:latest`, which stands for the only variant of a model.
pub(crate) fn without_tag(name: &str) -> &str {
    name.strip_suffix(":latest").unwrap_or(name)
}

/// # Errors
/// Returns an error if `name` is not the name of the served model.
pub(crate) fn check_name(name: &str, served: &ServedModel) -> Result<(), ApiError> {
    if name == served.id || without_tag(name) == served.id {
        Ok(())
    } else {
        Err(ApiError::no_model(name, &served.id))
    }
}

/// Reads a limit on tokens. The values -1 and -2 mean no limit besides the context, as in llama.cpp and
/// Ollama.
///
/// # Errors
/// Returns an error if the value is not such a number.
pub(crate) fn tokens_max(fields: &mut Fields, name: &str) -> Result<Option<usize>, ApiError> {
    if matches!(fields.peek(name).and_then(Value::as_i64), Some(-2 | -1)) {
        fields.take(name);
        return Ok(None);
    }
    let tokens = fields.integer(name, 0..=TOKENS_MAX)?;
    Ok(tokens.and_then(|tokens| usize::try_from(tokens).ok()))
}

/// Reads a limit on tokens that has several names.
///
/// # Errors
/// Returns an error if a value is invalid, or if two names have different values.
pub(crate) fn token_limit<const N: usize>(
    fields: &mut Fields,
    names: [&str; N],
) -> Result<Option<usize>, ApiError> {
    let mut limit: Option<(usize, &str)> = None;
    for name in names {
        let Some(tokens) = tokens_max(fields, name)? else { continue };
        match limit {
            Some((other, first)) if other != tokens => {
                let message = format!("`{first}` is {other}, but `{name}` is {tokens}");
                return Err(fields.invalid(first, message));
            }
            _ => limit = Some((tokens, name)),
        }
    }
    Ok(limit.map(|(tokens, _)| tokens))
}

fn include_usage(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(mut options) = fields.object("stream_options")? else { return Ok(false) };
    // Default: usage is only sent on request, as the API specifies.
    let include_usage = options.flag("include_usage")?.unwrap_or(false);
    if options.flag("include_obfuscation")? == Some(true) {
        options.ignore("include_obfuscation")?;
    }
    options.end()?;
    Ok(include_usage && stream)
}

/// Reads `top_k`. Zero and -1 keep all tokens.
///
/// # Errors
/// Returns an error if the value is not an integer in range.
fn top_k(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    if fields.peek("top_k").and_then(Value::as_i64) == Some(-1) {
        fields.take("top_k");
        return Ok(Some(0));
    }
    let top_k = fields.integer("top_k", 0..=u64::from(u32::MAX))?;
    Ok(top_k.and_then(|top_k| usize::try_from(top_k).ok()))
}

/// Reads the samplers of a request, with temperatures in the range of its API. Missing values are left to the
/// model's defaults. Returns the parameters in effect as well.
///
/// # Errors
/// Returns an error for the first value that is out of range.
pub(crate) fn sampling(
    fields: &mut Fields,
    model: &Model,
    temperatures: RangeInclusive<f64>,
) -> Result<(SamplingOptions, SamplingParams), ApiError> {
    let top_p = fields.number("top_p", 0.0..=1.0)?;
    let mut sampling = SamplingOptions {
        temperature: fields.number("temperature", temperatures)?,
        // The value 0 keeps the most likely token alone, as in llama.cpp.
        top_p: top_p.map(|share| share.max(f32::MIN_POSITIVE)),
        top_k: top_k(fields)?,
        min_p: fields.number("min_p", 0.0..=1.0)?,
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?,
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?,
        seed: seed(fields)?,
        ..SamplingOptions::default()
    };
    for name in ["repeat_penalty", "repetition_penalty"] {
        sampling.repetition_penalty =
            fields.number(name, PENALTIES)?.or(sampling.repetition_penalty);
    }
    samplers::take(fields, &mut sampling)?;
    sampling.logit_bias = logit_bias(fields, model)?;
    let params = sampling.over(model.default_sampling());
    params.validate().map_err(|error| fields.invalid(error.name, error.to_string()))?;
    Ok((sampling, params))
}

/// Reads `seed`, which may be negative. The value -1 requests a random seed, as in llama.cpp.
///
/// # Errors
/// Returns an error if the value is not a whole number.
fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    let Some(seed) = fields.take("seed") else { return Ok(None) };
    let bits = seed_bits(&seed);
    let bits = bits.ok_or_else(|| fields.invalid("seed", "a whole number was expected"))?;
    Ok(Some(bits).filter(|bits| *bits != u64::MAX))
}

fn logit_bias(fields: &mut Fields, model: &Model) -> Result<Option<Vec<(u32, f32)>>, ApiError> {
    let name = "logit_bias";
    let Some(value) = fields.take(name) else { return Ok(None) };
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
    Ok(Some(biases))
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
    // An empty text never stops a generation.
    let texts = texts.into_iter().filter(|text| text.as_str() != Some(""));
    let texts =
        texts.map(|text| match text {
            Value::String(text) if text.len() <= STOP_BYTES_MAX => Ok(text),
            _ => Err(fields
                .invalid(name, format!("texts of at most {STOP_BYTES_MAX} bytes were expected"))),
        });
    texts.collect()
}
