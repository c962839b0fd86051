//! Request fields of the samplers that llama.cpp's and Ollama's servers have besides OpenAI's.

use nestling::{SamplerKind, SamplingOptions};
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{SAMPLERS_MAX, STOP_BYTES_MAX, TOKENS_MAX};

/// Largest value of an unbounded number.
pub(crate) const NUMBER_MAX: f64 = 1e6;

/// A parameter from 0 on.
pub(crate) struct NumberField {
    pub name: &'static str,
    pub most: f64,
    of: fn(&mut SamplingOptions) -> &mut Option<f32>,
}

const fn field(
    name: &'static str,
    most: f64,
    of: fn(&mut SamplingOptions) -> &mut Option<f32>,
) -> NumberField {
    NumberField { name, most, of }
}

/// The parameters from 0 on, for the parser and for `openapi.json`.
pub(crate) const NUMBERS: [NumberField; 9] = [
    field("typical_p", 1.0, |sampling| &mut sampling.typical_p),
    field("xtc_probability", 1.0, |sampling| &mut sampling.xtc_probability),
    field("xtc_threshold", 1.0, |sampling| &mut sampling.xtc_threshold),
    field("dry_multiplier", NUMBER_MAX, |sampling| &mut sampling.dry_multiplier),
    field("dry_base", NUMBER_MAX, |sampling| &mut sampling.dry_base),
    field("mirostat_tau", NUMBER_MAX, |sampling| &mut sampling.mirostat_tau),
    field("mirostat_eta", NUMBER_MAX, |sampling| &mut sampling.mirostat_eta),
    field("dynatemp_range", NUMBER_MAX, |sampling| &mut sampling.dynatemp_range),
    field("dynatemp_exponent", NUMBER_MAX, |sampling| &mut sampling.dynatemp_exponent),
];

/// Reads the samplers. Missing values are left to the model's defaults.
///
/// # Errors
/// Returns an error for the first value that is out of range.
pub(crate) fn take(fields: &mut Fields, sampling: &mut SamplingOptions) -> Result<(), ApiError> {
    for NumberField { name, most, of } in NUMBERS {
        *of(sampling) = fields.number(name, 0.0..=most)?;
    }
    // As for top-p, 0 keeps one token.
    sampling.typical_p = sampling.typical_p.map(|share| share.max(f32::MIN_POSITIVE));
    sampling.top_n_sigma = fields.number("top_n_sigma", -1.0..=NUMBER_MAX)?;
    sampling.repeat_last_n = window(fields, "repeat_last_n")?;
    sampling.dry_penalty_last_n = window(fields, "dry_penalty_last_n")?;
    counts(fields, sampling)?;
    lists(fields, sampling)
}

fn counts(fields: &mut Fields, sampling: &mut SamplingOptions) -> Result<(), ApiError> {
    for (name, most, value) in [
        ("mirostat", 2, &mut sampling.mirostat),
        ("dry_allowed_length", TOKENS_MAX, &mut sampling.dry_allowed_length),
    ] {
        // The ranges fit into the type.
        *value = fields.integer(name, 0..=most)?.and_then(|count| u32::try_from(count).ok());
    }
    Ok(())
}

fn lists(fields: &mut Fields, sampling: &mut SamplingOptions) -> Result<(), ApiError> {
    sampling.dry_sequence_breakers = texts(fields, "dry_sequence_breakers")?;
    let name = "samplers";
    if let Some(names) = texts(fields, name)? {
        let kinds = names.iter().map(|kind| {
            kind.parse::<SamplerKind>().map_err(|error| fields.unsupported(name, error.to_string()))
        });
        sampling.samplers = Some(kinds.collect::<Result<_, _>>()?);
    }
    Ok(())
}

/// Reads a number of latest tokens, of which -1 means all.
fn window(fields: &mut Fields, name: &str) -> Result<Option<i32>, ApiError> {
    if fields.peek(name).and_then(Value::as_i64) == Some(-1) {
        fields.take(name);
        return Ok(Some(-1));
    }
    let tokens = fields.integer(name, 0..=TOKENS_MAX)?;
    Ok(tokens.and_then(|tokens| i32::try_from(tokens).ok()))
}

fn texts(fields: &mut Fields, name: &str) -> Result<Option<Vec<String>>, ApiError> {
    let Some(items) = fields.list(name, SAMPLERS_MAX)? else { return Ok(None) };
    let texts = items.into_iter().map(|item| match item {
        Value::String(text) if text.len() <= STOP_BYTES_MAX => Ok(text),
        _ => Err(fields.invalid(name, "a list of texts was expected")),
    });
    texts.collect::<Result<_, _>>().map(Some)
}
