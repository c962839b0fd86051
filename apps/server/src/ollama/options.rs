//! The `options` of a request: sampling and stop sequences.

use nestling::{Model, SamplingParams};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{EVENTS_MAX, TOKENS_MAX};
use crate::sampling::stop;
use nestling::GenerateOptions;

/// # Errors
/// Returns an error for the first option that is invalid, unsupported, or requests a longer context than
/// available.
pub(super) fn take(fields: &mut Fields, model: &Model) -> Result<GenerateOptions, ApiError> {
    let mut options = GenerateOptions {
        token_events: true,
        events_max: EVENTS_MAX,
        ..GenerateOptions::default()
    };
    let Some(mut asked) = fields.object("options")? else {
        return Ok(options);
    };
    let sampling = sampling(&mut asked, model)?;
    options.stop = stop(&mut asked)?;
    options.max_tokens = tokens_max(&mut asked)?;
    let context = model.context_length() as u64;
    if let Some(wanted) = asked.integer("num_ctx", 1..=TOKENS_MAX)?.filter(|n| *n > context) {
        let message = format!("the model is open with a context of {context} tokens, not {wanted}");
        return Err(asked.unsupported("num_ctx", message));
    }
    asked.end()?;
    options.sampling = sampling.into();
    Ok(options)
}

/// Reads `num_predict`. The values -1 and -2 mean no limit besides the context.
fn tokens_max(asked: &mut Fields) -> Result<Option<usize>, ApiError> {
    let name = "num_predict";
    let Some(value) = asked.take(name) else { return Ok(None) };
    if matches!(value.as_i64(), Some(-2 | -1)) {
        return Ok(None);
    }
    let tokens = value.as_u64().filter(|tokens| (1..=TOKENS_MAX).contains(tokens));
    let tokens = tokens.and_then(|tokens| usize::try_from(tokens).ok());
    tokens.map(Some).ok_or_else(|| {
        asked.invalid(name, format!("a whole number from 1 to {TOKENS_MAX}, or -1, was expected"))
    })
}

fn sampling(asked: &mut Fields, model: &Model) -> Result<SamplingParams, ApiError> {
    let mut sampling = model.default_sampling().clone();
    let numbers = [
        ("temperature", 0.0..=100.0, &mut sampling.temperature),
        ("top_p", 0.0..=1.0, &mut sampling.top_p),
        ("min_p", 0.0..=1.0, &mut sampling.min_p),
        ("repeat_penalty", 0.01..=100.0, &mut sampling.repetition_penalty),
        ("presence_penalty", -2.0..=2.0, &mut sampling.presence_penalty),
        ("frequency_penalty", -2.0..=2.0, &mut sampling.frequency_penalty),
    ];
    for (name, range, value) in numbers {
        if let Some(number) = asked.number(name, range)? {
            *value = number;
        }
    }
    if let Some(top_k) = asked.integer("top_k", 0..=u64::from(u32::MAX))? {
        // Default: a value that overflows means no limit.
        sampling.top_k = usize::try_from(top_k).unwrap_or(0);
    }
    if let Some(seed) = asked.take("seed") {
        // Seeds may be negative. The bits of the number are used.
        let bits = seed.as_u64().or_else(|| seed.as_i64().map(i64::cast_unsigned));
        let bits = bits.ok_or_else(|| asked.invalid("seed", "a whole number was expected"))?;
        sampling.seed = Some(bits);
    }
    sampling.validate().map_err(|error| {
        let name = match error.name {
            "repetition_penalty" => "repeat_penalty",
            name => name,
        };
        asked.invalid(name, error.to_string())
    })?;
    Ok(sampling)
}
