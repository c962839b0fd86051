//! MiniMax-M2 and M2.5: norms over all heads together, partial RoPE, and sigmoid scores with a selection
//! bias. Multi-token prediction layers are ignored.

use serde_json::Value;

use super::keys::{self, Parts};
use super::{
    Architecture, ExpertVector, Family, ModelConfig, Multipliers, QkNorm, RouterConfig, RouterScore,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::MAX_WIDTH;

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::MiniMaxM2,
    model_type: "minimax_m2",
    class: "MiniMaxM2ForCausalLM",
    keys: &[
        "attn_type_list",
        "auto_map",
        "layernorm_full_attention_beta",
        "layernorm_linear_attention_beta",
        "layernorm_mlp_beta",
        "mlp_intermediate_size",
        "mtp_transformer_layers",
        "num_local_experts",
        "num_mtp_modules",
        "qk_norm_type",
        "rotary_dim",
        "router_jitter_noise",
        "scoring_func",
        "shared_intermediate_size",
        "shared_moe_mode",
        "use_mtp",
        "use_qk_norm",
        "use_routing_bias",
    ],
    read,
};

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    keys::full_attention(fields)?;
    refuse_options(fields)?;
    let mut attention = keys::attention_with(fields, keys::rope_of_dims)?;
    attention.qk_norm = QkNorm::FullWidth;
    let mixture = |_| keys::mixture(fields, "num_local_experts", "intermediate_size", None);
    let layers = keys::layers(fields, attention, mixture)?;
    let router = RouterConfig {
        score: RouterScore::Sigmoid,
        selection_bias: ExpertVector::Present,
        ..RouterConfig::softmax(true)
    };
    let multipliers = Multipliers::NONE;
    keys::model(
        fields,
        Parts { architecture: FAMILY.architecture, layers, router: Some(router), multipliers },
    )
}

/// Rejects options that contradict the family's fixed behaviour.
fn refuse_options(fields: &Fields) -> Result<(), ImportError> {
    for key in ["use_qk_norm", "use_routing_bias"] {
        if fields.boolean(key)? == Some(false) {
            return Err(fields.unsupported(key, "supported: true"));
        }
    }
    for (key, only) in [("scoring_func", "sigmoid"), ("qk_norm_type", "per_layer")] {
        if fields.text(key)?.is_some_and(|found| found != only) {
            return Err(fields.unsupported(key, &format!("supported: {only}")));
        }
    }
    if keys::count(fields, "shared_intermediate_size", MAX_WIDTH)?.is_some_and(|size| size > 0) {
        return Err(fields.unsupported("shared_intermediate_size", "supported: 0"));
    }
    for key in
        ["layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"]
    {
        if fields.number(key)?.is_some_and(|beta| beta != 1.0) {
            return Err(fields.unsupported(key, "supported: 1"));
        }
    }
    // Type 0 is linear attention, used by the previous family.
    let softmax = |kinds: &Value| {
        kinds.as_array().is_some_and(|kinds| kinds.iter().all(|kind| kind.as_u64() == Some(1)))
    };
    if fields.get("attn_type_list").is_some_and(|kinds| !softmax(kinds)) {
        return Err(fields.unsupported("attn_type_list", "supported: 1 for every layer"));
    }
    Ok(())
}
