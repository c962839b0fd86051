//! Sample tokens for calibrating the thresholds of dual routing.

use nestling_core::error::EngineError;
use nestling_levels::dual::{SAMPLE_TEXT, SAMPLE_TOKENS};
use nestling_text::{EncodeOptions, SpecialText, Tokenizer};

/// Returns the tokens of the sample text. A model without a tokenizer gets pseudo-random token ids instead.
///
/// # Errors
/// Returns an error if the tokenizer fails on the sample text.
pub fn sample_tokens(
    tokenizer: Option<&Tokenizer>,
    vocab_size: usize,
) -> Result<Vec<u32>, EngineError> {
    let options = EncodeOptions { add_special_tokens: false, special_text: SpecialText::Plain };
    let mut tokens = match tokenizer {
        Some(tokenizer) => tokenizer.encode(SAMPLE_TEXT, options).map_err(EngineError::text)?,
        None => (0..SAMPLE_TOKENS as u32).map(|at| at.wrapping_mul(2_654_435_761) >> 8).collect(),
    };
    tokens.truncate(SAMPLE_TOKENS);
    let vocab_size = u32::try_from(vocab_size).unwrap_or(u32::MAX).max(1);
    tokens.iter_mut().for_each(|token| *token %= vocab_size);
    Ok(tokens)
}
