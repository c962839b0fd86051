//! Gemma 3's text models: dense layers with norms around each part. Most layers have a sliding window, and
//! RoPE settings of their own.

use super::keys::{self, Parts};
use super::{
    Activation, Architecture, AttentionConfig, BlockNorms, Family, LayerConfig, ModelConfig,
    Multipliers, QkNorm, RopeConfig, RopeScaling, TokenMixer, gemma4, rope,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH};

pub(super) const TEXT_FAMILY: Family = Family {
    architecture: Architecture::Gemma3Text,
    model_type: "gemma3_text",
    class: "Gemma3ForCausalLM",
    keys: &[
        "cache_implementation",
        "final_logit_softcapping",
        "hidden_activation",
        "query_pre_attn_scalar",
        "rope_local_base_freq",
        "sliding_window",
        "sliding_window_pattern",
    ],
    read,
};

const PARAMETERS: &str = "rope_parameters";
const SCALAR: &str = "query_pre_attn_scalar";

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    gemma4::gelu(fields)?;
    let hidden_size = fields.required_size("hidden_size", MAX_WIDTH)?;
    let feed_forward = keys::dense(fields)?;
    let global = attention(fields, global_rope)?;
    let window = fields.size("sliding_window", MAX_POSITIONS)?;
    let local = AttentionConfig { sliding_window: window, ..attention(fields, local_rope)? };
    let every = fields.required_size("sliding_window_pattern", MAX_LAYERS)?;
    let is_windowed = |layer: usize| !(layer + 1).is_multiple_of(every);
    // Layers without a window of a model without windows would still rotate as layers with one.
    if window.is_none() {
        return Err(fields.wrong("sliding_window", "a number of positions"));
    }
    let windows = keys::windows(fields, is_windowed)?;
    let layer = |window: Option<usize>| {
        let mixer = TokenMixer::Attention(if window.is_some() { local } else { global });
        LayerConfig { mixer, feed_forward }
    };
    let parts = Parts {
        architecture: Architecture::Gemma3Text,
        layers: windows.into_iter().map(layer).collect(),
        router: None,
        multipliers: Multipliers { embedding: (hidden_size as f32).sqrt(), ..Multipliers::NONE },
    };
    let mut config = keys::model(fields, parts)?;
    config.activation = Activation::GeluTanh;
    config.block_norms = BlockNorms::Around;
    config.final_logit_softcapping = gemma4::softcap(fields)?;
    Ok(config)
}

fn attention(
    fields: &Fields,
    rope: fn(&Fields, usize) -> Result<RopeConfig, ImportError>,
) -> Result<AttentionConfig, ImportError> {
    let mut attention = keys::attention_with(fields, rope)?;
    attention.qk_norm = QkNorm::PerHead;
    let scalar = keys::factor(fields, SCALAR)?;
    if scalar < 0.0 {
        return Err(fields.wrong(SCALAR, "a number above 0"));
    }
    attention.scale = 1.0 / scalar.sqrt();
    Ok(attention)
}

fn global_rope(fields: &Fields, head_dim: usize) -> Result<RopeConfig, ImportError> {
    let scaling = fields.object("rope_scaling")?.filter(|scaling| !scaling.is_empty());
    rope_of(fields, head_dim, "full_attention", "rope_theta", 1e6, scaling)
}

fn local_rope(fields: &Fields, head_dim: usize) -> Result<RopeConfig, ImportError> {
    rope_of(fields, head_dim, "sliding_attention", "rope_local_base_freq", 1e4, None)
}

/// Refuses a rotation of only a part of each head.
fn refuse_part(fields: &Fields) -> Result<(), ImportError> {
    const KEY: &str = "partial_rotary_factor";
    match fields.number(KEY)? {
        None | Some(1.0) => Ok(()),
        Some(_) => Err(fields.unsupported(KEY, "supported: 1.0")),
    }
}

/// Reads the RoPE settings of a kind of layers: from the kind's object in `rope_parameters`, or from the keys
/// of older files, which are the base with its default and the scaling.
fn rope_of(
    fields: &Fields,
    dims: usize,
    kind: &str,
    key: &str,
    default: f64,
    scaling: Option<Fields>,
) -> Result<RopeConfig, ImportError> {
    refuse_part(fields)?;
    let is_nested = fields.member(PARAMETERS).is_some();
    let own = if is_nested {
        if fields.member("rope_scaling").is_some() {
            return Err(fields.unsupported("rope_scaling", "supported: `rope_parameters` alone"));
        }
        let all = fields.object(PARAMETERS)?;
        let all = all.ok_or_else(|| fields.wrong(PARAMETERS, "an object"))?;
        let known = ["full_attention", "sliding_attention"];
        if let Some((key, value)) = all.members().find(|(key, _)| !known.contains(key)) {
            return Err(all.unknown(key, value));
        }
        all.object(kind)?
    } else {
        scaling
    };
    let Some(own) = own else {
        // Default: the base that transformers has for the kind.
        let theta = rope::checked_theta(fields, fields.number(key)?.or(Some(default)))?;
        return Ok(RopeConfig { theta, dims, scaling: RopeScaling::None });
    };
    own.refuse_null("rope_theta")?;
    refuse_part(&own)?;
    // transformers does not look for the key in the settings of a kind of layers, and truncates.
    own.refuse_null("truncate")?;
    if own.boolean("truncate")? == Some(false) {
        return Err(own.unsupported("truncate", "supported: true"));
    }
    // In `rope_scaling`, transformers ignores the older name `type` of `rope_type`, and so the scaling.
    let implied = if is_nested { None } else { Some("default") };
    let (kind, older) = (own.text("rope_type")?.or(implied), own.text("type")?);
    if older.is_some() && kind.is_some() && older != kind {
        return Err(own.unsupported("type", "supported: `rope_type`"));
    }
    let (theta, beside) = (own.number("rope_theta")?, fields.number(key)?);
    if theta.is_some() && beside.is_some() && theta != beside {
        return Err(own.wrong("rope_theta", format!("the value of `{key}` beside it")));
    }
    // Default: the base that transformers has for the kind.
    let theta = theta.or(beside).unwrap_or(default);
    let theta = rope::checked_theta(&own, Some(theta))?;
    Ok(RopeConfig { theta, dims, scaling: rope::read_scaling(fields, &own, dims)? })
}
