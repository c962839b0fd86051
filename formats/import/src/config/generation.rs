//! Sampling defaults of a model, from `generation_config.json`.

use crate::ImportError;
use crate::json::Fields;
use crate::limits::{MAX_CONFIG_BYTES, MAX_EOS_TOKENS};

/// Values of `generation_config.json`; `None` for absent keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// False for greedy decoding.
    pub do_sample: Option<bool>,
    /// Softmax temperature.
    pub temperature: Option<f32>,
    /// Number of most likely tokens to sample from; 0 for all.
    pub top_k: Option<u32>,
    /// Nucleus probability mass.
    pub top_p: Option<f32>,
    /// Minimum probability relative to the most likely token.
    pub min_p: Option<f32>,
    /// Divisor of the logits of tokens that occurred before.
    pub repetition_penalty: Option<f32>,
    /// Begin-of-sequence token.
    pub bos_token_id: Option<u32>,
    /// End-of-sequence tokens. A non-empty list replaces the tokens of the model configuration.
    pub eos_token_ids: Vec<u32>,
}

impl GenerationDefaults {
    /// Parses and validates a `generation_config.json`; `file` is its name in errors. Keys without a field in
    /// this struct are ignored, because they do not affect the model.
    ///
    /// ```
    /// use nestling_import::GenerationDefaults;
    ///
    /// let bytes = br#"{"do_sample": true, "temperature": 0.7, "top_k": 20}"#;
    /// let defaults = GenerationDefaults::from_json("generation_config.json", bytes)?;
    /// assert_eq!(defaults.temperature, Some(0.7));
    /// assert_eq!(defaults.top_p, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an [`ImportError`] that names the key and the problem.
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
