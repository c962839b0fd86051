//! dots.llm1: Qwen3's attention and DeepSeek-V3's experts.

use super::keys::{self, Parts};
use super::{
    Architecture, AttentionConfig, Family, ModelConfig, Multipliers, QkNorm, TokenMixer, routed,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::MAX_LAYERS;

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::Dots1,
    model_type: "dots1",
    class: "Dots1ForCausalLM",
    keys: &[
        "attention_bias",
        "first_k_dense_replace",
        "moe_intermediate_size",
        "moe_layer_freq",
        "n_group",
        "n_routed_experts",
        "n_shared_experts",
        "norm_topk_prob",
        "pretraining_tp",
        "routed_scaling_factor",
        "scoring_func",
        "sliding_window",
        "topk_group",
        "topk_method",
    ],
    read,
};

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    routed::refuse_sparser(fields)?;
    let mut attention = keys::attention(fields)?;
    attention.qk_norm = QkNorm::PerHead;
    attention.bias = keys::attention_bias(fields)?;
    // The only number without a default.
    if fields.get("n_shared_experts").is_none() {
        return Err(fields.wrong("n_shared_experts", "a number of experts"));
    }
    let mut layers = routed::layers(fields, attention)?;
    // Default: no layer has a sliding window.
    let full = keys::count(fields, "max_window_layers", MAX_LAYERS)?.unwrap_or(MAX_LAYERS);
    for (layer, window) in layers.iter_mut().zip(keys::windows(fields, |layer| layer >= full)?) {
        layer.mixer =
            TokenMixer::Attention(AttentionConfig { sliding_window: window, ..attention });
    }
    let router = routed::sigmoid_router(fields)?;
    let multipliers = Multipliers::NONE;
    keys::model(
        fields,
        Parts { architecture: FAMILY.architecture, layers, router: Some(router), multipliers },
    )
}
