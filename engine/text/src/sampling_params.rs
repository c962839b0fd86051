//! Sampling parameters, their ranges, and the names of the samplers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Maximum length of [`SamplingParams::samplers`].
const SAMPLERS_MAX: usize = 32;

/// Maximum number of DRY sequence breakers. Each one is searched in the whole vocabulary.
const BREAKERS_MAX: usize = 32;

/// Maximum length of a DRY sequence breaker in bytes, as in llama.cpp.
const BREAKER_BYTES_MAX: usize = 40;

/// A sampler that [`SamplingParams::samplers`] may contain. Names are those of llama.cpp.
///
/// ```
/// use nestling_text::SamplerKind;
///
/// assert_eq!("top-n-sigma".parse(), Ok(SamplerKind::TopNSigma));
/// assert_eq!(SamplerKind::TypicalP.name(), "typ_p");
/// assert!("infill".parse::<SamplerKind>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
#[non_exhaustive]
pub enum SamplerKind {
    /// Repetition, presence and frequency penalties.
    Penalties,
    /// DRY penalty of repeated sequences.
    Dry,
    /// Top-n-sigma.
    TopNSigma,
    /// Temperature, fixed or dynamic.
    Temperature,
    /// Top-k.
    TopK,
    /// Locally typical sampling.
    TypicalP,
    /// Top-p.
    TopP,
    /// Min-p.
    MinP,
    /// Exclusion of the most likely tokens (XTC).
    Xtc,
}

impl SamplerKind {
    /// Default order: that of `transformers`, with the other samplers placed as in llama.cpp.
    pub const DEFAULT_ORDER: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::Temperature,
        Self::TopK,
        Self::TypicalP,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
    ];

    /// Returns llama.cpp's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::Dry => "dry",
            Self::TopNSigma => "top_n_sigma",
            Self::Temperature => "temperature",
            Self::TopK => "top_k",
            Self::TypicalP => "typ_p",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::Xtc => "xtc",
        }
    }

    /// Parses names separated by semicolons, as in llama.cpp's command line. An empty text is an empty list.
    ///
    /// # Errors
    /// Fails for an unknown name.
    pub fn parse_list(names: &str) -> Result<Vec<Self>, UnknownSampler> {
        match names.trim() {
            "" => Ok(Vec::new()),
            names => names.split(';').map(|name| name.trim().parse()).collect(),
        }
    }
}

impl fmt::Display for SamplerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<SamplerKind> for String {
    fn from(kind: SamplerKind) -> Self {
        kind.name().into()
    }
}

impl TryFrom<String> for SamplerKind {
    type Error = UnknownSampler;

    fn try_from(name: String) -> Result<Self, UnknownSampler> {
        name.parse()
    }
}

impl FromStr for SamplerKind {
    type Err = UnknownSampler;

    /// Parses a name of llama.cpp or one of its aliases, written with `_` or `-`.
    fn from_str(name: &str) -> Result<Self, UnknownSampler> {
        let plain = name.replace('-', "_");
        let alias = match plain.as_str() {
            "temp" => "temperature",
            "typ" | "typical" | "typical_p" => "typ_p",
            "nucleus" => "top_p",
            other => other,
        };
        let known = Self::DEFAULT_ORDER.into_iter().find(|kind| kind.name() == alias);
        known.ok_or_else(|| UnknownSampler { name: name.into() })
    }
}

/// A name that is not the name of a sampler.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "samplers: unknown name {name:?}; the names are penalties, dry, top_n_sigma, temperature, top_k, \
     typ_p, top_p, min_p and xtc"
)]
pub struct UnknownSampler {
    /// The name given.
    pub name: String,
}

/// Sampling parameters. The default is the model's unmodified distribution.
///
/// ```
/// use nestling_text::SamplingParams;
///
/// let params = SamplingParams { temperature: 0.7, top_p: 0.9, ..SamplingParams::default() };
/// assert!(params.validate().is_ok());
/// let error = SamplingParams { top_p: 0.0, ..params }.validate().err();
/// assert_eq!(error.map(|error| error.name), Some("top_p"));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divisor of the logits; 0 is greedy.
    pub temperature: f32,
    /// Maximum number of tokens to draw from; 0 is unlimited.
    pub top_k: usize,
    /// Probability mass to draw from, in (0, 1]; 1 keeps all tokens.
    pub top_p: f32,
    /// Minimum probability relative to the best token; 0 keeps all tokens.
    pub min_p: f32,
    /// Probability mass of the tokens whose surprise is closest to the entropy, in (0, 1]; 1 keeps all tokens
    /// (llama.cpp, Meister et al. 2022).
    pub typical_p: f32,
    /// Maximum distance from the best logit, in standard deviations of the logits; 0 or less keeps all tokens
    /// (llama.cpp).
    pub top_n_sigma: f32,
    /// Probability of applying XTC to a draw, from 0 to 1; 0 is off (llama.cpp).
    pub xtc_probability: f32,
    /// Minimum probability of the tokens that XTC considers, from 0 to 1; default 0.1; above 0.5 XTC is off.
    /// XTC removes all of them but the least likely one.
    pub xtc_threshold: f32,
    /// Factor of the DRY penalty, from 0; 0 is off (llama.cpp). A token that would extend a repeated sequence of
    /// `n` tokens loses `dry_multiplier * dry_base.powi(n - dry_allowed_length)`.
    pub dry_multiplier: f32,
    /// Base of the DRY penalty; default 1.75; below 1 DRY is off.
    pub dry_base: f32,
    /// Length of a repeated sequence, in tokens, from which DRY penalizes its extension; default 2.
    pub dry_allowed_length: u32,
    /// Number of latest tokens of prompt and response that DRY scans; default -1 is all, 0 is off.
    pub dry_penalty_last_n: i32,
    /// Texts of 1 to 40 bytes that end a repeated sequence for DRY; at most 32. Default: newline, colon, double
    /// quote, asterisk. Ignored for a model without a tokenizer.
    pub dry_sequence_breakers: Vec<String>,
    /// Version of mirostat: 0 is off; 2 replaces all samplers except [`Self::logit_bias`] and
    /// [`Self::temperature`], as in llama.cpp. Version 1 is not supported.
    pub mirostat: u32,
    /// Target surprise of mirostat in bits, from 0; default 5.
    pub mirostat_tau: f32,
    /// Learning rate of mirostat, from 0; default 0.1.
    pub mirostat_eta: f32,
    /// Half of the width of the dynamic temperature's interval around [`Self::temperature`], from 0; 0 is off
    /// (llama.cpp). The temperature grows with the normalized entropy.
    pub dynatemp_range: f32,
    /// Exponent of the normalized entropy in the dynamic temperature, from 0; default 1.
    pub dynatemp_exponent: f32,
    /// Penalty of tokens in prompt and response: above 1 makes them less likely; 1 is off.
    pub repetition_penalty: f32,
    /// Penalty subtracted from the logits of tokens in the response.
    pub presence_penalty: f32,
    /// Penalty subtracted once per occurrence of a token in the response.
    pub frequency_penalty: f32,
    /// Number of latest tokens of prompt and response that the repetition, presence and frequency penalties
    /// count; default -1 is all, 0 switches the three penalties off.
    pub repeat_last_n: i32,
    /// Samplers in the order of their application, at most 32. A sampler that is absent is not applied, the
    /// temperature included. The default is [`SamplerKind::DEFAULT_ORDER`].
    pub samplers: Vec<SamplerKind>,
    /// Values added to the logits of these tokens; minus infinity forbids a token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the draws. Without one, the session chooses a seed and reports it.
    pub seed: Option<u64>,
    /// Number of best tokens whose log-probabilities are reported, in addition to the chosen one's. `None`
    /// reports none.
    pub top_logprobs: Option<usize>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            top_n_sigma: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: -1,
            dry_sequence_breakers: ["\n", ":", "\"", "*"].map(String::from).to_vec(),
            mirostat: 0,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repeat_last_n: -1,
            samplers: SamplerKind::DEFAULT_ORDER.to_vec(),
            logit_bias: vec![],
            seed: None,
            top_logprobs: None,
        }
    }
}

fn in_range(
    name: &'static str,
    value: f32,
    expected: &'static str,
    good: bool,
) -> Result<(), InvalidParameter> {
    if good { Ok(()) } else { Err(InvalidParameter { name, expected, value }) }
}

fn from_zero(name: &'static str, value: f32) -> Result<(), InvalidParameter> {
    in_range(name, value, "a number from 0 on", value.is_finite() && value >= 0.0)
}

fn share(name: &'static str, value: f32) -> Result<(), InvalidParameter> {
    in_range(name, value, "a number from 0 to 1", (0.0..=1.0).contains(&value))
}

fn positive_share(name: &'static str, value: f32) -> Result<(), InvalidParameter> {
    in_range(name, value, "a number above 0, at most 1", value > 0.0 && value <= 1.0)
}

fn finite(name: &'static str, value: f32) -> Result<(), InvalidParameter> {
    in_range(name, value, "a number", value.is_finite())
}

fn window(name: &'static str, value: i32) -> Result<(), InvalidParameter> {
    in_range(name, value as f32, "-1 for all tokens, or a count", value >= -1)
}

impl SamplingParams {
    /// Returns parameters that always choose the most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Returns an error if a parameter is out of range.
    pub fn validate(&self) -> Result<(), InvalidParameter> {
        from_zero("temperature", self.temperature)?;
        positive_share("top_p", self.top_p)?;
        share("min_p", self.min_p)?;
        let r = self.repetition_penalty;
        in_range("repetition_penalty", r, "a number above 0", r.is_finite() && r > 0.0)?;
        finite("presence_penalty", self.presence_penalty)?;
        finite("frequency_penalty", self.frequency_penalty)?;
        window("repeat_last_n", self.repeat_last_n)?;
        for (_, bias) in &self.logit_bias {
            let good = bias.is_finite() || *bias == f32::NEG_INFINITY;
            in_range("logit_bias", *bias, "a number or minus infinity", good)?;
        }
        positive_share("typical_p", self.typical_p)?;
        finite("top_n_sigma", self.top_n_sigma)?;
        share("xtc_probability", self.xtc_probability)?;
        share("xtc_threshold", self.xtc_threshold)?;
        from_zero("dynatemp_range", self.dynatemp_range)?;
        from_zero("dynatemp_exponent", self.dynatemp_exponent)?;
        let (version, expected) = (self.mirostat, "0 or 2; version 1 is not supported");
        in_range("mirostat", version as f32, expected, matches!(version, 0 | 2))?;
        from_zero("mirostat_tau", self.mirostat_tau)?;
        from_zero("mirostat_eta", self.mirostat_eta)?;
        let count = self.samplers.len();
        in_range("samplers", count as f32, "at most 32 names", count <= SAMPLERS_MAX)?;
        self.validate_dry()
    }

    fn validate_dry(&self) -> Result<(), InvalidParameter> {
        from_zero("dry_multiplier", self.dry_multiplier)?;
        from_zero("dry_base", self.dry_base)?;
        window("dry_penalty_last_n", self.dry_penalty_last_n)?;
        let (name, count) = ("dry_sequence_breakers", self.dry_sequence_breakers.len());
        in_range(name, count as f32, "at most 32 texts", count <= BREAKERS_MAX)?;
        for breaker in &self.dry_sequence_breakers {
            let good = (1..=BREAKER_BYTES_MAX).contains(&breaker.len());
            in_range(name, breaker.len() as f32, "texts of 1 to 40 bytes", good)?;
        }
        Ok(())
    }

    /// Returns true if the repetition, presence and frequency penalties change no logit.
    pub(crate) fn penalizes_nothing(&self) -> bool {
        let is_neutral = self.repetition_penalty == 1.0
            && self.presence_penalty == 0.0
            && self.frequency_penalty == 0.0;
        is_neutral || self.repeat_last_n == 0
    }

    /// Returns true if a sampler changes anything with these parameters.
    pub(crate) fn is_active(&self, kind: SamplerKind) -> bool {
        match kind {
            SamplerKind::Penalties => !self.penalizes_nothing(),
            SamplerKind::Dry => {
                self.dry_multiplier > 0.0 && self.dry_base >= 1.0 && self.dry_penalty_last_n != 0
            }
            SamplerKind::TopNSigma => self.top_n_sigma > 0.0,
            SamplerKind::Temperature => self.temperature != 1.0 || self.dynatemp_range > 0.0,
            SamplerKind::TopK => self.top_k > 0,
            SamplerKind::TypicalP => self.typical_p < 1.0,
            SamplerKind::TopP => self.top_p < 1.0,
            SamplerKind::MinP => self.min_p > 0.0,
            SamplerKind::Xtc => self.xtc_probability > 0.0 && self.xtc_threshold <= 0.5,
        }
    }
}

/// A sampling parameter out of range.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{name}: expected {expected}, found {value}")]
pub struct InvalidParameter {
    /// Name of the field of [`SamplingParams`].
    pub name: &'static str,
    /// Description of a valid value.
    pub expected: &'static str,
    /// The value given; the length, for a list or a text.
    pub value: f32,
}
