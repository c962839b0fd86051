//! DeepSeek-V3: latent attention, sigmoid scores with a selection bias, and expert groups. The multi-token
//! prediction layer is ignored.

use super::keys::{self, Parts};
use super::{Architecture, Family, ModelConfig, Multipliers, latent, routed};
use crate::ImportError;
use crate::json::Fields;

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::DeepseekV3,
    model_type: "deepseek_v3",
    class: "DeepseekV3ForCausalLM",
    keys: &[
        "attention_bias",
        "auto_map",
        "aux_loss_alpha",
        "ep_size",
        "first_k_dense_replace",
        "kv_lora_rank",
        "moe_intermediate_size",
        "moe_layer_freq",
        "n_group",
        "n_routed_experts",
        "n_shared_experts",
        "norm_topk_prob",
        "num_mtp_layers",
        "num_nextn_predict_layers",
        "pretraining_tp",
        "q_lora_rank",
        "qk_head_dim",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "rope_interleave",
        "routed_scaling_factor",
        "scoring_func",
        "seq_aux",
        "topk_group",
        "topk_method",
        "v_head_dim",
    ],
    read: |fields| read(fields, Architecture::DeepseekV3),
};

/// Kimi-K2, the same architecture under its own name.
pub(super) const KIMI_FAMILY: Family = Family {
    architecture: Architecture::KimiK2,
    model_type: "kimi_k2",
    read: |fields| read(fields, Architecture::KimiK2),
    ..FAMILY
};

fn read(fields: &Fields, architecture: Architecture) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    let attention = latent::attention(fields, latent::rope_pairs(fields)?)?;
    let layers = latent::layers(fields, attention, routed::dense_layers(fields)?)?;
    let router = routed::sigmoid_router(fields)?;
    let multipliers = Multipliers::NONE;
    keys::model(fields, Parts { architecture, layers, router: Some(router), multipliers })
}
