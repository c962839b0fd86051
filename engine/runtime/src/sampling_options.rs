//! Per-request sampling settings that override the model's defaults.

use serde::{Deserialize, Serialize};

use crate::options_wire;
use nestling_text::SamplingParams;

/// Sampling settings of a generation. Fields that are `None` use the model's default, for example from
/// `generation_config.json` ([`crate::Model::default_sampling`]).
///
/// ```
/// use nestling_runtime::SamplingOptions;
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
    /// Overrides [`SamplingParams::logit_bias`]. A bias of minus infinity is serialized as null.
    #[serde(with = "options_wire::biases")]
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
            logit_bias: Some(params.logit_bias),
            seed: params.seed,
            top_logprobs: params.top_logprobs,
        }
    }
}
