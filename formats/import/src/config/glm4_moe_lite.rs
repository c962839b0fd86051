//! GLM-4.7-Flash: latent attention, sigmoid scores with a selection bias, and expert groups. The multi-token
//! prediction layer is ignored.

use super::keys::{self, Parts};
use super::{Architecture, Family, ModelConfig, Multipliers, latent, routed};
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
    let router = routed::sigmoid_router(fields)?;
    let multipliers = Multipliers::NONE;
    keys::model(
        fields,
        Parts { architecture: FAMILY.architecture, layers, router: Some(router), multipliers },
    )
}

/// Number of dense layers at the start, a key used by stores and GGUF files. transformers reads only
/// [`LAYER_TYPES`].
const DENSE_LAYERS: &str = "first_k_dense_replace";

const LAYER_TYPES: &str = "mlp_layer_types";

/// Rejects a number of dense layers that transformers would ignore.
pub(super) fn refuse_unread(fields: &Fields) -> Result<(), ImportError> {
    let dense = keys::count(fields, DENSE_LAYERS, MAX_LAYERS)?;
    match (fields.get(LAYER_TYPES), dense) {
        (Some(_), _) | (None, None | Some(1)) => Ok(()),
        (None, Some(_)) => {
            Err(fields.unsupported(DENSE_LAYERS, "supported: 1, or `mlp_layer_types`"))
        }
    }
}

/// Returns whether each layer is dense, from `mlp_layer_types` or else from the number of dense layers.
fn dense_layers(fields: &Fields) -> Result<Vec<bool>, ImportError> {
    let count = fields.required_size("num_hidden_layers", MAX_LAYERS)?;
    if let Some(dense) = routed::dense_by_type(fields)? {
        return Ok(dense);
    }
    // Default: one dense layer, as in transformers.
    let dense = keys::count(fields, DENSE_LAYERS, MAX_LAYERS)?.unwrap_or(1);
    Ok((0..count).map(|layer| layer < dense).collect())
}
