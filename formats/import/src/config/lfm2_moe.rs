//! LFM2-MoE: gated short convolutions interleaved with attention, and DeepSeek-V3's scores of experts. The
//! first layers are dense.

use serde_json::Value;

use super::keys::{self, Parts};
use super::{
    Architecture, ExpertVector, Family, LayerConfig, ModelConfig, Multipliers, QkNorm,
    RouterConfig, ShortConvConfig, TokenMixer, routed,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{MAX_CONV_KERNEL, MAX_LAYERS, MAX_WIDTH};

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::Lfm2Moe,
    model_type: "lfm2_moe",
    class: "Lfm2MoeForCausalLM",
    keys: &[
        "conv_L_cache",
        "conv_bias",
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_dense_layers",
        "num_experts",
        "routed_scaling_factor",
        "use_expert_bias",
    ],
    read,
};

/// Reads the configuration. transformers adds 1e-6 to the sum by which expert weights are normalized. This is
/// left out: it is below the rounding of bf16 unless the sum of the scores is below 3e-4.
fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    let mut attention = keys::attention(fields)?;
    attention.qk_norm = QkNorm::PerHead;
    let conv = TokenMixer::ShortConv(short_conv(fields)?);
    let kinds = attention_layers(fields)?;
    // Default: 0, if the table has no default.
    let dense = keys::count(fields, "num_dense_layers", MAX_LAYERS)?.unwrap_or(0);
    let layer = |(layer, is_attention): (usize, bool)| {
        let mixer = if is_attention { TokenMixer::Attention(attention) } else { conv };
        let feed_forward = match layer < dense {
            true => keys::dense(fields)?,
            false => keys::mixture(fields, "num_experts", "moe_intermediate_size", None)?,
        };
        Ok(LayerConfig { mixer, feed_forward })
    };
    let layers = kinds.into_iter().enumerate().map(layer);
    let layers = layers.collect::<Result<Vec<_>, ImportError>>()?;
    let router = router(fields)?;
    let multipliers = Multipliers::NONE;
    keys::model(
        fields,
        Parts { architecture: FAMILY.architecture, layers, router: Some(router), multipliers },
    )
}

fn router(fields: &Fields) -> Result<RouterConfig, ImportError> {
    let selection_bias = match fields.boolean("use_expert_bias")? {
        Some(false) => ExpertVector::Absent,
        _ => ExpertVector::Present,
    };
    Ok(RouterConfig { selection_bias, ..routed::sigmoids(fields, None)? })
}

pub(super) fn short_conv(fields: &Fields) -> Result<ShortConvConfig, ImportError> {
    const KEY: &str = "conv_L_cache";
    let taps = fields.required_size(KEY, MAX_CONV_KERNEL)?;
    if taps < 2 {
        return Err(fields.wrong(KEY, "at least 2 positions"));
    }
    let bias = fields.boolean("conv_bias")? == Some(true);
    Ok(ShortConvConfig { channels: fields.required_size("hidden_size", MAX_WIDTH)?, taps, bias })
}

/// Returns for each layer whether it is attention.
pub(super) fn attention_layers(fields: &Fields) -> Result<Vec<bool>, ImportError> {
    const KEY: &str = "layer_types";
    let count = fields.required_size("num_hidden_layers", MAX_LAYERS)?;
    let types = fields.get(KEY).and_then(Value::as_array).filter(|types| types.len() == count);
    let types = types.ok_or_else(|| fields.wrong(KEY, format!("a list of {count}")))?;
    let kind = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Ok(true),
        Some("conv") => Ok(false),
        _ => Err(fields.unsupported(KEY, "supported: conv, full_attention")),
    };
    types.iter().map(kind).collect()
}
