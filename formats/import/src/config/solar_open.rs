//! Solar Open: DeepSeek-V3's experts in all layers.

use super::keys::{self, Parts};
use super::{Architecture, Family, ModelConfig, Multipliers, routed};
use crate::ImportError;
use crate::json::Fields;

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::SolarOpen,
    model_type: "solar_open",
    class: "SolarOpenForCausalLM",
    keys: &[
        "attention_bias",
        "first_k_dense_replace",
        "moe_intermediate_size",
        "n_group",
        "n_routed_experts",
        "n_shared_experts",
        "norm_topk_prob",
        "routed_scaling_factor",
        "scoring_func",
        "topk_group",
        "topk_method",
    ],
    read,
};

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    keys::full_attention(fields)?;
    let mut attention = keys::attention(fields)?;
    attention.bias = keys::input_bias(fields, "attention_bias")?;
    if routed::dense_layers(fields)?(0) {
        return Err(fields.unsupported("first_k_dense_replace", "supported: 0"));
    }
    let layers = keys::layers(fields, attention, |_| routed::mixture(fields))?;
    let router = routed::sigmoid_router(fields)?;
    let multipliers = Multipliers::NONE;
    keys::model(
        fields,
        Parts { architecture: FAMILY.architecture, layers, router: Some(router), multipliers },
    )
}
