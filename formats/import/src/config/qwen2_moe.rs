//! Qwen1.5-MoE and Qwen2-MoE: a shared expert behind a sigmoid, biases of queries, keys and values.

use super::keys::{self, Parts};
use super::{
    Architecture, AttentionBias, Family, ModelConfig, Multipliers, RouterConfig, SharedExpert,
    SharedGate,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::MAX_WIDTH;

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::Qwen2Moe,
    model_type: "qwen2_moe",
    class: "Qwen2MoeForCausalLM",
    keys: &[
        "decoder_sparse_step",
        "mlp_only_layers",
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_experts",
        "qkv_bias",
        "shared_expert_intermediate_size",
    ],
    read,
};

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    keys::full_attention(fields)?;
    let mut attention = keys::attention(fields)?;
    attention.bias = match fields.boolean("qkv_bias")? {
        Some(true) => AttentionBias::QueryKeyValue,
        _ => AttentionBias::Absent,
    };
    let is_sparse = keys::sparse_layers(fields)?;
    let layers = keys::layers(fields, attention, |layer| {
        if !is_sparse(layer) {
            return keys::dense(fields);
        }
        let intermediate_size =
            fields.required_size("shared_expert_intermediate_size", MAX_WIDTH)?;
        let shared = SharedExpert { intermediate_size, gate: SharedGate::Sigmoid };
        keys::mixture(fields, "num_experts", "moe_intermediate_size", Some(shared))
    })?;
    let router = RouterConfig::softmax(fields.boolean("norm_topk_prob")?.unwrap_or(false));
    let multipliers = Multipliers::NONE;
    keys::model(fields, Parts { architecture: FAMILY.architecture, layers, router, multipliers })
}
