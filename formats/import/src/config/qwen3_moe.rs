//! Qwen3-MoE: norms per head; each layer is a mixture unless listed in `mlp_only_layers`.

use super::keys::{self, Parts};
use super::{Architecture, Family, ModelConfig, Multipliers, QkNorm, RouterConfig};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::MAX_POSITIONS;

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::Qwen3Moe,
    model_type: "qwen3_moe",
    class: "Qwen3MoeForCausalLM",
    keys: KEYS,
    read: |fields| {
        let norm_topk_prob = fields.boolean("norm_topk_prob")?.unwrap_or(false);
        // The window applies to all layers, if it is enabled.
        let is_on = fields.boolean("use_sliding_window")? == Some(true);
        let window = if is_on { fields.size("sliding_window", MAX_POSITIONS)? } else { None };
        read_text(fields, FAMILY.architecture, norm_topk_prob, window)
    },
};

/// Keys that multimodal models also have in their text part.
pub(super) const KEYS: &[&str] = &[
    "attention_bias",
    "decoder_sparse_step",
    "mlp_only_layers",
    "moe_intermediate_size",
    "norm_topk_prob",
    "num_experts",
    "num_local_experts",
    "qkv_bias",
    "shared_expert_intermediate_size",
    "sliding_window",
    "use_qk_norm",
    "use_sliding_window",
];

pub(super) fn read_text(
    fields: &Fields,
    architecture: Architecture,
    norm_topk_prob: bool,
    sliding_window: Option<usize>,
) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    keys::full_attention(fields)?;
    refuse_options(fields)?;
    let mut attention = keys::attention(fields)?;
    attention.qk_norm = QkNorm::PerHead;
    attention.sliding_window = sliding_window;
    attention.bias = keys::attention_bias(fields)?;
    // Other versions of transformers write the number of experts under this name.
    let other = fields.member("num_local_experts");
    if let (Some(one), Some(other)) = (fields.member("num_experts"), other)
        && one != other
    {
        return Err(fields.wrong("num_local_experts", "the same as `num_experts`"));
    }
    let experts_key = if other.is_some() { "num_local_experts" } else { "num_experts" };
    let is_sparse = keys::sparse_layers(fields)?;
    let layers = keys::layers(fields, attention, |layer| match is_sparse(layer) {
        true => keys::mixture(fields, experts_key, "moe_intermediate_size", None),
        false => keys::dense(fields),
    })?;
    let router = RouterConfig::softmax(norm_topk_prob);
    let multipliers = Multipliers::NONE;
    keys::model(fields, Parts { architecture, layers, router: Some(router), multipliers })
}

/// Rejects options that contradict the fixed behaviour of Qwen3-MoE. Qwen3-Coder's files contain them.
fn refuse_options(fields: &Fields) -> Result<(), ImportError> {
    if fields.boolean("use_qk_norm")? == Some(false) {
        return Err(fields.unsupported("use_qk_norm", "supported: true"));
    }
    if fields.boolean("qkv_bias")? == Some(true) {
        return Err(fields.unsupported("qkv_bias", "supported: false"));
    }
    match fields.number("shared_expert_intermediate_size")? {
        None | Some(0.0) => Ok(()),
        Some(_) => Err(fields.unsupported("shared_expert_intermediate_size", "supported: 0")),
    }
}
