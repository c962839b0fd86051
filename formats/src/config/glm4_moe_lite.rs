//! GLM-4.7-Flash: latent attention, sigmoid scores with a bias for the choice, groups of experts.
//! The layer that predicts a second token is left out.

use serde_json::Value;

use super::keys::{self, Parts};
use super::{Architecture, Family, ModelConfig, Multipliers, latent};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::MAX_LAYERS;

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::Glm4MoeLite,
    model_type: "glm4_moe_lite",
    class: "Glm4MoeLiteForCausalLM",
    keys: &[
        "attention_bias",
        "first_k_dense_replace",
        "kv_lora_rank",
        "mlp_layer_types",
        "moe_intermediate_size",
        "moe_layer_freq",
        "n_group",
        "n_routed_experts",
        "n_shared_experts",
        "norm_topk_prob",
        "num_nextn_predict_layers",
        "pretraining_tp",
        "q_lora_rank",
        "qk_head_dim",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "rope_interleave",
        "routed_scaling_factor",
        "scoring_func",
        "topk_group",
        "topk_method",
        "v_head_dim",
    ],
    read,
};

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    let attention = latent::attention(fields, latent::rope_pairs(fields)?)?;
    let dense_layers = dense_layers(fields)?;
    let layers = latent::layers(fields, attention, |layer| dense_layers.get(layer) == Some(&true))?;
    let router = latent::sigmoid_router(fields)?;
    let multipliers = Multipliers::NONE;
    keys::model(fields, Parts { architecture: FAMILY.architecture, layers, router, multipliers })
}

/// Whether each layer is dense: by `mlp_layer_types`, else the first one.
fn dense_layers(fields: &Fields) -> Result<Vec<bool>, ImportError> {
    const KEY: &str = "first_k_dense_replace";
    let count = fields.required_size("num_hidden_layers", MAX_LAYERS)?;
    let wrong = || fields.wrong("mlp_layer_types", format!("{count} times dense or sparse"));
    match fields.get("mlp_layer_types") {
        Some(Value::Array(types)) if types.len() == count => types
            .iter()
            .map(|kind| match kind.as_str() {
                Some("dense") => Ok(true),
                Some("sparse") => Ok(false),
                _ => Err(wrong()),
            })
            .collect(),
        Some(_) => Err(wrong()),
        None => match keys::count(fields, KEY, MAX_LAYERS)? {
            None | Some(1) => Ok((0..count).map(|layer| layer < 1).collect()),
            // Who reads `mlp_layer_types` alone takes the first layer to be dense.
            Some(_) => Err(fields.unsupported(KEY, "supported: 1, or `mlp_layer_types`")),
        },
    }
}
