//! `generation_config.json`: what the makers of a model recommend.

use crate::ImportError;
use crate::json::Fields;
use crate::limits::{MAX_CONFIG_BYTES, MAX_EOS_TOKENS};

/// What `generation_config.json` recommends; `None` where it says nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// False asks for greedy decoding.
    pub do_sample: Option<bool>,
    /// Softmax temperature.
    pub temperature: Option<f32>,
    /// How many tokens are kept; 0 keeps all.
    pub top_k: Option<u32>,
    /// The probability mass that is kept.
    pub top_p: Option<f32>,
    /// The least probability that is kept, relative to the largest.
    pub min_p: Option<f32>,
    /// Divides the logits of tokens that were seen.
    pub repetition_penalty: Option<f32>,
    /// The token that begins a text.
    pub bos_token_id: Option<u32>,
    /// The tokens that end a text; when not empty they replace those of the model configuration.
    pub eos_token_ids: Vec<u32>,
}

impl GenerationDefaults {
    /// Reads and checks a `generation_config.json`; `file` names it in errors. Keys without a field
    /// here are ignored: they steer the caller's sampling, not the model.
    ///
    /// # Errors
    /// [`ImportError`] that names the key and what is wrong with it.
    pub fn from_json(file: &str, bytes: &[u8]) -> Result<Self, ImportError> {
        let fields = Fields::parse(file, bytes, MAX_CONFIG_BYTES)?;
        let ranged = |key: &str, low: f64, high: f64| match fields.number(key)? {
            Some(value) if value < low || value > high => {
                Err(fields.wrong(key, format!("a number from {low} to {high}")))
            }
            value => Ok(value.map(|value| value as f32)),
        };
        let top_k = match fields.number("top_k")? {
            Some(value) if !(0.0..=4e9).contains(&value) || value.fract() != 0.0 => {
                return Err(fields.wrong("top_k", "a whole number"));
            }
            value => value.map(|value| value as u32),
        };
        Ok(Self {
            do_sample: fields.boolean("do_sample")?,
            temperature: ranged("temperature", 0.0, 100.0)?,
            top_k,
            top_p: ranged("top_p", 0.0, 1.0)?,
            min_p: ranged("min_p", 0.0, 1.0)?,
            repetition_penalty: ranged("repetition_penalty", 0.001, 1000.0)?,
            bos_token_id: fields.numbers("bos_token_id", 1)?.first().copied(),
            eos_token_ids: fields.numbers("eos_token_id", MAX_EOS_TOKENS)?,
        })
    }
}
