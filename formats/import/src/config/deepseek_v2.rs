//! DeepSeek-V2 and V2-Lite: latent attention, and a softmax over all experts without renormalization.

use super::keys::{self, Parts};
use super::{
    Architecture, Family, GroupScore, ModelConfig, Multipliers, RopePairs, RouterConfig, latent,
    routed,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{MAX_HEADS, MAX_WIDTH};

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::DeepseekV2,
    model_type: "deepseek_v2",
    class: "DeepseekV2ForCausalLM",
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
        "pretraining_tp",
        "q_lora_rank",
        "qk_head_dim",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "routed_scaling_factor",
        "scoring_func",
        "seq_aux",
        "topk_group",
        "topk_method",
        "v_head_dim",
    ],
    read,
};

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    let heads = fields.required_size("num_attention_heads", MAX_HEADS)?;
    if !fields.required_size("hidden_size", MAX_WIDTH)?.is_multiple_of(heads) {
        let expected = format!("a multiple of `num_attention_heads` = {heads}");
        return Err(fields.wrong("hidden_size", expected));
    }
    let attention = latent::attention(fields, RopePairs::Adjacent)?;
    let layers = latent::layers(fields, attention, routed::dense_layers(fields)?)?;
    if !matches!(fields.text("scoring_func")?, None | Some("softmax")) {
        return Err(fields.unsupported("scoring_func", "supported: softmax"));
    }
    if fields.boolean("norm_topk_prob")? == Some(true) {
        return Err(fields.unsupported("norm_topk_prob", "supported: false"));
    }
    let groups = match fields.text("topk_method")? {
        None | Some("greedy") => None,
        Some("group_limited_greedy") => {
            fields.refuse_null("n_group")?;
            routed::groups(fields, GroupScore::Best)?
        }
        Some(_) => {
            let supported = "supported: greedy, group_limited_greedy";
            return Err(fields.unsupported("topk_method", supported));
        }
    };
    let scale = keys::factor(fields, "routed_scaling_factor")?;
    let router = RouterConfig { scale, groups, ..RouterConfig::softmax(false) };
    let multipliers = Multipliers::NONE;
    keys::model(
        fields,
        Parts { architecture: FAMILY.architecture, layers, router: Some(router), multipliers },
    )
}
