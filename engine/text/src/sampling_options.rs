//! Per-request sampling settings that override the model's defaults.

use serde::{Deserialize, Serialize};

use crate::sampling_params::{SamplerKind, SamplingParams};

/// Sampling settings of a generation. Fields that are `None` use the model's default, for example from
/// `generation_config.json`.
///
/// ```
/// use nestling_text::SamplingOptions;
///
/// let seeded = SamplingOptions { seed: Some(7), ..SamplingOptions::default() };
/// let read: SamplingOptions = serde_json::from_str(r#"{"seed": 7, "logit_bias": [[3, null]]}"#)?;
/// assert_eq!(read, SamplingOptions { logit_bias: Some(vec![(3, f32::NEG_INFINITY)]), ..seeded });
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingOptions {
    /// Overrides [`SamplingParams::temperature`].
    pub temperature: Option<f32>,
    /// Overrides [`SamplingParams::top_k`].
    pub top_k: Option<usize>,
    /// Overrides [`SamplingParams::top_p`].
    pub top_p: Option<f32>,
    /// Overrides [`SamplingParams::min_p`].
    pub min_p: Option<f32>,
    /// Overrides [`SamplingParams::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
    /// Overrides [`SamplingParams::presence_penalty`].
    pub presence_penalty: Option<f32>,
    /// Overrides [`SamplingParams::frequency_penalty`].
    pub frequency_penalty: Option<f32>,
    /// Overrides [`SamplingParams::typical_p`].
    pub typical_p: Option<f32>,
    /// Overrides [`SamplingParams::top_n_sigma`].
    pub top_n_sigma: Option<f32>,
    /// Overrides [`SamplingParams::xtc_probability`].
    pub xtc_probability: Option<f32>,
    /// Overrides [`SamplingParams::xtc_threshold`].
    pub xtc_threshold: Option<f32>,
    /// Overrides [`SamplingParams::dry_multiplier`].
    pub dry_multiplier: Option<f32>,
    /// Overrides [`SamplingParams::dry_base`].
    pub dry_base: Option<f32>,
    /// Overrides [`SamplingParams::dry_allowed_length`].
    pub dry_allowed_length: Option<u32>,
    /// Overrides [`SamplingParams::dry_penalty_last_n`].
    pub dry_penalty_last_n: Option<i32>,
    /// Overrides [`SamplingParams::dry_sequence_breakers`].
    pub dry_sequence_breakers: Option<Vec<String>>,
    /// Overrides [`SamplingParams::mirostat`].
    pub mirostat: Option<u32>,
    /// Overrides [`SamplingParams::mirostat_tau`].
    pub mirostat_tau: Option<f32>,
    /// Overrides [`SamplingParams::mirostat_eta`].
    pub mirostat_eta: Option<f32>,
    /// Overrides [`SamplingParams::dynatemp_range`].
    pub dynatemp_range: Option<f32>,
    /// Overrides [`SamplingParams::dynatemp_exponent`].
    pub dynatemp_exponent: Option<f32>,
    /// Overrides [`SamplingParams::repeat_last_n`].
    pub repeat_last_n: Option<i32>,
    /// Overrides [`SamplingParams::samplers`].
    pub samplers: Option<Vec<SamplerKind>>,
    /// Overrides [`SamplingParams::logit_bias`]. A bias of minus infinity is serialized as null.
    #[serde(with = "biases")]
    pub logit_bias: Option<Vec<(u32, f32)>>,
    /// Overrides [`SamplingParams::seed`].
    pub seed: Option<u64>,
    /// Overrides [`SamplingParams::top_logprobs`].
    pub top_logprobs: Option<usize>,
}

impl SamplingOptions {
    /// Returns options for greedy decoding.
    pub fn greedy() -> Self {
        SamplingParams::greedy().into()
    }

    /// Returns the parameters for a model whose defaults are `own`.
    #[must_use]
    pub fn over(&self, own: &SamplingParams) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(own.temperature),
            top_k: self.top_k.unwrap_or(own.top_k),
            top_p: self.top_p.unwrap_or(own.top_p),
            min_p: self.min_p.unwrap_or(own.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(own.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(own.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(own.frequency_penalty),
            typical_p: self.typical_p.unwrap_or(own.typical_p),
            top_n_sigma: self.top_n_sigma.unwrap_or(own.top_n_sigma),
            xtc_probability: self.xtc_probability.unwrap_or(own.xtc_probability),
            xtc_threshold: self.xtc_threshold.unwrap_or(own.xtc_threshold),
            dry_multiplier: self.dry_multiplier.unwrap_or(own.dry_multiplier),
            dry_base: self.dry_base.unwrap_or(own.dry_base),
            dry_allowed_length: self.dry_allowed_length.unwrap_or(own.dry_allowed_length),
            dry_penalty_last_n: self.dry_penalty_last_n.unwrap_or(own.dry_penalty_last_n),
            dry_sequence_breakers: self
                .dry_sequence_breakers
                .clone()
                .unwrap_or_else(|| own.dry_sequence_breakers.clone()),
            mirostat: self.mirostat.unwrap_or(own.mirostat),
            mirostat_tau: self.mirostat_tau.unwrap_or(own.mirostat_tau),
            mirostat_eta: self.mirostat_eta.unwrap_or(own.mirostat_eta),
            dynatemp_range: self.dynatemp_range.unwrap_or(own.dynatemp_range),
            dynatemp_exponent: self.dynatemp_exponent.unwrap_or(own.dynatemp_exponent),
            repeat_last_n: self.repeat_last_n.unwrap_or(own.repeat_last_n),
            samplers: self.samplers.clone().unwrap_or_else(|| own.samplers.clone()),
            logit_bias: self.logit_bias.as_ref().unwrap_or(&own.logit_bias).clone(),
            seed: self.seed.or(own.seed),
            top_logprobs: self.top_logprobs.or(own.top_logprobs),
        }
    }
}

/// Sets all fields, so that the model's defaults are ignored. A `seed` or `top_logprobs` of `None` still
/// falls back to them.
impl From<SamplingParams> for SamplingOptions {
    fn from(params: SamplingParams) -> Self {
        Self {
            temperature: Some(params.temperature),
            top_k: Some(params.top_k),
            top_p: Some(params.top_p),
            min_p: Some(params.min_p),
            repetition_penalty: Some(params.repetition_penalty),
            presence_penalty: Some(params.presence_penalty),
            frequency_penalty: Some(params.frequency_penalty),
            typical_p: Some(params.typical_p),
            top_n_sigma: Some(params.top_n_sigma),
            xtc_probability: Some(params.xtc_probability),
            xtc_threshold: Some(params.xtc_threshold),
            dry_multiplier: Some(params.dry_multiplier),
            dry_base: Some(params.dry_base),
            dry_allowed_length: Some(params.dry_allowed_length),
            dry_penalty_last_n: Some(params.dry_penalty_last_n),
            dry_sequence_breakers: Some(params.dry_sequence_breakers),
            mirostat: Some(params.mirostat),
            mirostat_tau: Some(params.mirostat_tau),
            mirostat_eta: Some(params.mirostat_eta),
            dynatemp_range: Some(params.dynatemp_range),
            dynatemp_exponent: Some(params.dynatemp_exponent),
            repeat_last_n: Some(params.repeat_last_n),
            samplers: Some(params.samplers),
            logit_bias: Some(params.logit_bias),
            seed: params.seed,
            top_logprobs: params.top_logprobs,
        }
    }
}

/// Logit biases. Minus infinity is serialized as null, since JSON has no infinity.
mod biases {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        biases: &Option<Vec<(u32, f32)>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let finite = |(token, bias): &(u32, f32)| (*token, bias.is_finite().then_some(*bias));
        let wire = biases.as_ref().map(|all| all.iter().map(finite).collect::<Vec<_>>());
        wire.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<(u32, f32)>>, D::Error> {
        let wire = Option::<Vec<(u32, Option<f32>)>>::deserialize(deserializer)?;
        // Default: null stands for minus infinity.
        let bias = |(token, bias): (u32, Option<f32>)| (token, bias.unwrap_or(f32::NEG_INFINITY));
        Ok(wire.map(|all| all.into_iter().map(bias).collect()))
    }
}
