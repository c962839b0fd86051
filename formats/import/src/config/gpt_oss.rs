//! gpt-oss: attention sinks, alternating sliding windows, biases in all projections, and a clamped SwiGLU.
//! Experts may be stored in MXFP4.

use super::keys::{self, Parts};
use super::{
    Activation, Architecture, AttentionConfig, ExpertBias, ExpertFormat, ExpertVector, Family,
    LayerConfig, ModelConfig, Multipliers, RouterConfig, Sinks, TokenMixer,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::MAX_POSITIONS;

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::GptOss,
    model_type: "gpt_oss",
    class: "GptOssForCausalLM",
    keys: &[
        "attention_bias",
        "experts_per_token",
        "initial_context_length",
        "num_local_experts",
        "quantization_config",
        "sliding_window",
        "swiglu_alpha",
        "swiglu_limit",
    ],
    read,
};

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    let mut attention = keys::attention(fields)?;
    attention.sinks = Sinks::Present;
    attention.bias = keys::attention_bias(fields)?;
    let feed_forward = keys::mixture(fields, "num_local_experts", "intermediate_size", None)?;
    let layers = windows(fields)?.into_iter().map(|sliding_window| {
        let mixer = TokenMixer::Attention(AttentionConfig { sliding_window, ..attention });
        LayerConfig { mixer, feed_forward }
    });
    let router = RouterConfig { logit_bias: ExpertVector::Present, ..RouterConfig::softmax(true) };
    let parts = Parts {
        architecture: FAMILY.architecture,
        layers: layers.collect(),
        router: Some(router),
        multipliers: Multipliers::NONE,
    };
    let mut config = keys::model(fields, parts)?;
    config.activation = Activation::ClampedSwiglu {
        alpha: positive(fields, "swiglu_alpha")?,
        limit: positive(fields, "swiglu_limit")?,
    };
    config.expert_bias = ExpertBias::Present;
    config.expert_format = expert_format(fields)?;
    Ok(config)
}

/// Returns the sliding window of each layer. Without `layer_types`, layers with an even index have one.
fn windows(fields: &Fields) -> Result<Vec<Option<usize>>, ImportError> {
    fields.required_size("sliding_window", MAX_POSITIONS)?;
    keys::windows(fields, |layer| layer % 2 == 0)
}

fn positive(fields: &Fields, key: &str) -> Result<f32, ImportError> {
    match fields.number(key)?.map(|value| value as f32) {
        Some(value) if value > 0.0 && value.is_finite() => Ok(value),
        _ => Err(fields.wrong(key, "a number above 0")),
    }
}

/// Returns the storage format of the experts from `quantization_config`.
fn expert_format(fields: &Fields) -> Result<ExpertFormat, ImportError> {
    let Some(quantization) = fields.object("quantization_config")? else {
        return Ok(ExpertFormat::Floats);
    };
    if quantization.text("quant_method")? != Some("mxfp4") {
        return Err(quantization.unsupported("quant_method", "supported: mxfp4"));
    }
    let known = ["dequantize", "modules_to_not_convert", "quant_method"];
    match quantization.members().find(|(key, _)| !known.contains(key)) {
        None => Ok(ExpertFormat::Mxfp4),
        Some((key, value)) => Err(quantization.unknown(key, value)),
    }
}
