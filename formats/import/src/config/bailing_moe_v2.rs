//! Ling 2.0 and Ring 2.0: norms per head, partial RoPE, and DeepSeek-V3's experts under different keys.
//! Multi-token prediction layers are ignored.
//!
//! transformers has no class for this family, and readers disagree on the defaults of absent keys. Keys that
//! change the graph are therefore required.

use super::keys::{self, Parts};
use super::routed::{self, Names};
use super::{Architecture, AttentionBias, Family, GroupScore, ModelConfig, Multipliers, QkNorm};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{MAX_EXPERTS_PER_TOKEN, MAX_WIDTH};

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::BailingMoeV2,
    model_type: "bailing_moe_v2",
    class: "BailingMoeV2ForCausalLM",
    keys: &[
        "auto_map",
        "embedding_dropout",
        "first_k_dense_replace",
        "moe_intermediate_size",
        "moe_router_enable_expert_bias",
        "moe_router_enable_shared_expert",
        "moe_shared_expert_intermediate_size",
        "mtp_loss_scaling_factor",
        "n_group",
        "norm_head",
        "norm_softmax",
        "norm_topk_prob",
        "num_experts",
        "num_nextn_predict_layers",
        "num_shared_experts",
        "output_dropout",
        "routed_scaling_factor",
        "router_dtype",
        "score_function",
        "topk_group",
        "use_bias",
        "use_qk_norm",
        "use_qkv_bias",
        "use_rmsnorm",
    ],
    read,
};

/// The same family under the model type of the previous generation, as in published files.
pub(super) const OLD_FAMILY: Family = Family { model_type: "bailing_moe", ..FAMILY };

const NAMES: Names = Names { experts: "num_experts", shared: "num_shared_experts" };

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    keys::full_attention(fields)?;
    refuse_options(fields)?;
    if fields.get("partial_rotary_factor").is_none() {
        return Err(fields.wrong("partial_rotary_factor", "a part of a head"));
    }
    let mut attention = keys::attention_with(fields, keys::partial_rope)?;
    attention.bias = bias(fields)?;
    if required(fields, "use_qk_norm")? {
        attention.qk_norm = QkNorm::PerHead;
    }
    let layers = routed::layers_of(fields, attention, &NAMES)?;
    let groups = routed::groups_of(fields, GroupScore::TwoBest, &NAMES)?;
    let mut router = routed::sigmoids(fields, groups)?;
    let chosen = fields.required_size("num_experts_per_tok", MAX_EXPERTS_PER_TOKEN)?;
    router.norm_topk_prob = chosen > 1;
    let multipliers = Multipliers::NONE;
    keys::model(
        fields,
        Parts { architecture: FAMILY.architecture, layers, router: Some(router), multipliers },
    )
}

/// Reads the biases. Queries, keys and values are one matrix, with a bias independent of the output's.
fn bias(fields: &Fields) -> Result<AttentionBias, ImportError> {
    Ok(match (required(fields, "use_qkv_bias")?, required(fields, "use_bias")?) {
        (false, false) => AttentionBias::Absent,
        (true, false) => AttentionBias::QueryKeyValue,
        (true, true) => AttentionBias::All,
        (false, true) => return Err(fields.unsupported("use_bias", "supported: false")),
    })
}

fn required(fields: &Fields, key: &str) -> Result<bool, ImportError> {
    fields.boolean(key)?.ok_or_else(|| fields.wrong(key, "true or false"))
}

/// Rejects options that contradict the family's fixed behaviour.
fn refuse_options(fields: &Fields) -> Result<(), ImportError> {
    // The published code always normalizes the weights, regardless of `norm_topk_prob`.
    for key in [
        "norm_topk_prob",
        "moe_router_enable_expert_bias",
        "moe_router_enable_shared_expert",
        "use_rmsnorm",
    ] {
        if fields.boolean(key)? == Some(false) {
            return Err(fields.unsupported(key, "supported: true"));
        }
    }
    for key in ["norm_head", "norm_softmax"] {
        if fields.boolean(key)? == Some(true) {
            return Err(fields.unsupported(key, "supported: false"));
        }
    }
    if fields.text("score_function")?.is_some_and(|found| found != "sigmoid") {
        return Err(fields.unsupported("score_function", "supported: sigmoid"));
    }
    const SHARED: &str = "moe_shared_expert_intermediate_size";
    let width = fields.required_size("moe_intermediate_size", MAX_WIDTH)?;
    if fields.size(SHARED, MAX_WIDTH)?.is_some_and(|found| found != width) {
        let supported = format!("supported: `moe_intermediate_size` = {width}");
        return Err(fields.unsupported(SHARED, &supported));
    }
    Ok(())
}
