//! The `options` of a request: sampling and stop sequences.

use nestling::{Model, SamplingParams};

use crate::error::ApiError;
use crate::field_rules::{self, OLLAMA_OPTIONS};
use crate::fields::Fields;
use crate::limits::{EVENTS_MAX, TOKENS_MAX};
use crate::samplers;
use crate::sampling::{PENALTIES, seed, stop, tokens_max, top_k, top_p};
use nestling::GenerateOptions;

/// # Errors
/// Returns an error for the first option that is invalid or unsupported.
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
    options.max_tokens = tokens_max(&mut asked, "num_predict")?;
    // The server's start fixed the context. A prompt that needs more is an error, so that no answer changes.
    let context = model.context_length() as u64;
    if asked.integer("num_ctx", 0..=TOKENS_MAX)?.is_some_and(|tokens| tokens > context) {
        asked.ignore("num_ctx")?;
    }
    field_rules::apply(&mut asked, OLLAMA_OPTIONS)?;
    asked.end()?;
    options.sampling = sampling.into();
    Ok(options)
}

fn sampling(asked: &mut Fields, model: &Model) -> Result<SamplingParams, ApiError> {
    let mut sampling = model.default_sampling().clone();
    let numbers = [
        ("temperature", 0.0..=100.0, &mut sampling.temperature),
        ("min_p", 0.0..=1.0, &mut sampling.min_p),
        ("repeat_penalty", PENALTIES, &mut sampling.repetition_penalty),
        ("presence_penalty", -2.0..=2.0, &mut sampling.presence_penalty),
        ("frequency_penalty", -2.0..=2.0, &mut sampling.frequency_penalty),
    ];
    for (name, range, value) in numbers {
        if let Some(number) = asked.number(name, range)? {
            *value = number;
        }
    }
    top_p(asked, &mut sampling)?;
    top_k(asked, &mut sampling)?;
    seed(asked, &mut sampling)?;
    samplers::take(asked, &mut sampling)?;
    sampling.validate().map_err(|error| {
        let name = match error.name {
            "repetition_penalty" => "repeat_penalty",
            name => name,
        };
        asked.invalid(name, error.to_string())
    })?;
    Ok(sampling)
}
