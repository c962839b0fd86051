//! GLM-4.5 to GLM-4.7: attention with partial RoPE and DeepSeek-V3's experts. Multi-token prediction layers
//! are ignored.

use super::keys::{self, Parts};
use super::{Architecture, Family, ModelConfig, Multipliers, QkNorm, routed};
use crate::ImportError;
use crate::json::Fields;

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::Glm4Moe,
    model_type: "glm4_moe",
    class: "Glm4MoeForCausalLM",
    keys: &[
        "attention_bias",
        "first_k_dense_replace",
        "moe_intermediate_size",
        "n_group",
        "n_routed_experts",
        "n_shared_experts",
        "norm_topk_prob",
        "num_mtp_layers",
        "num_nextn_predict_layers",
        "routed_scaling_factor",
        "scoring_func",
        "topk_group",
        "topk_method",
        "use_qk_norm",
    ],
    read,
};

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    keys::full_attention(fields)?;
    let mut attention = keys::attention_with(fields, keys::partial_rope)?;
    attention.bias = keys::input_bias(fields, "attention_bias")?;
    if fields.boolean("use_qk_norm")? == Some(true) {
        attention.qk_norm = QkNorm::PerHead;
    }
    let layers = routed::layers(fields, attention)?;
    let router = routed::sigmoid_router(fields)?;
    let multipliers = Multipliers::NONE;
    keys::model(
        fields,
        Parts { architecture: FAMILY.architecture, layers, router: Some(router), multipliers },
    )
}
