//! The `options` of a request: sampling and stop sequences.

use nestling::{GenerateOptions, Model};

use crate::error::ApiError;
use crate::field_rules::{self, OLLAMA_OPTIONS};
use crate::fields::Fields;
use crate::limits::{EVENTS_MAX, TOKENS_MAX};
use crate::sampling::{sampling, stop, tokens_max};

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
    (options.sampling, _) = sampling(&mut asked, model, 0.0..=100.0)?;
    options.stop = stop(&mut asked)?;
    options.max_tokens = tokens_max(&mut asked, "num_predict")?;
    // The server's start fixed the context. A prompt that needs more is an error, so that no answer changes.
    let context = model.context_length() as u64;
    if asked.integer("num_ctx", 0..=TOKENS_MAX)?.is_some_and(|tokens| tokens > context) {
        asked.ignore("num_ctx")?;
    }
    field_rules::apply(&mut asked, OLLAMA_OPTIONS)?;
    asked.end()?;
    Ok(options)
}
