//! Hunyuan-A13B: attention with norms of heads after RoPE, mixtures with a softmax and a shared expert. A fixed
//! `alpha` stretches the base of RoPE.

use serde_json::Value;

use super::keys::{self, Parts};
use super::{
    Architecture, Family, FeedForward, ModelConfig, Multipliers, QkNorm, RopeConfig, RouterConfig,
    SharedExpert, SharedGate, rope,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{MAX_EXPERTS, MAX_EXPERTS_PER_TOKEN, MAX_HEAD_DIM, MAX_LAYERS, MAX_WIDTH};

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::HunyuanV1Moe,
    model_type: "hunyuan_v1_moe",
    class: "HunYuanMoEV1ForCausalLM",
    keys: &[
        "attention_bias",
        "attention_head_dim",
        "auto_map",
        "cla_share_factor",
        "eod_token_id",
        "mlp_bias",
        "moe_intermediate_size",
        "moe_layer_num_skipped",
        "moe_topk",
        "norm_topk_prob",
        "norm_type",
        "num_experts",
        "num_shared_expert",
        "org_vocab_size",
        "pretraining_tp",
        "routed_scaling_factor",
        "sep_token_id",
        "use_mixed_mlp_moe",
        "use_qk_norm",
        "use_rotary_pos_emb",
    ],
    read,
};

const WIDTH: &str = "intermediate_size";

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    keys::full_attention(fields)?;
    refuse_options(fields)?;
    // transformers derives no width of heads.
    let head_dim = fields.required_size("head_dim", MAX_HEAD_DIM)?;
    if fields.size("attention_head_dim", MAX_HEAD_DIM)?.is_some_and(|other| other != head_dim) {
        return Err(fields.wrong("attention_head_dim", format!("`head_dim` = {head_dim}")));
    }
    let mut attention = keys::attention_with(fields, rope_of)?;
    attention.bias = keys::attention_bias(fields)?;
    attention.qk_norm = QkNorm::PerHeadAfterRope;
    let feed_forward = mixture(fields)?;
    let layers = keys::layers(fields, attention, |_| Ok(feed_forward))?;
    let router = Some(RouterConfig::softmax(true));
    let multipliers = Multipliers::NONE;
    keys::model(fields, Parts { architecture: FAMILY.architecture, layers, router, multipliers })
}

/// Reads the experts. transformers gives all of them, and the shared one, the same width.
fn mixture(fields: &Fields) -> Result<FeedForward, ImportError> {
    let width = fields.required_size(WIDTH, MAX_WIDTH)?;
    let widths = "moe_intermediate_size";
    if of_all_layers(fields, widths, MAX_WIDTH)?.is_some_and(|found| found != width) {
        return Err(fields.wrong(widths, format!("`{WIDTH}` = {width}")));
    }
    let shared = "num_shared_expert";
    if of_all_layers(fields, shared, MAX_EXPERTS)?.is_some_and(|found| found != 1) {
        return Err(fields.unsupported(shared, "supported: 1"));
    }
    const CHOSEN: &str = "moe_topk";
    let num_experts = fields.required_size("num_experts", MAX_EXPERTS)?;
    let chosen = of_all_layers(fields, CHOSEN, MAX_EXPERTS_PER_TOKEN)?;
    let chosen = chosen.filter(|chosen| (1..=num_experts).contains(chosen));
    let wrong = || fields.wrong(CHOSEN, format!("1 to `num_experts` = {num_experts}"));
    Ok(FeedForward::Moe {
        num_experts,
        num_experts_per_tok: chosen.ok_or_else(wrong)?,
        moe_intermediate_size: width,
        shared: Some(SharedExpert { intermediate_size: width, gate: SharedGate::Open }),
    })
}

/// Reads a number that may be a list with the same number for each layer.
fn of_all_layers(fields: &Fields, key: &str, limit: usize) -> Result<Option<usize>, ImportError> {
    if !matches!(fields.get(key), Some(Value::Array(_))) {
        return keys::count(fields, key, limit);
    }
    let layers = fields.required_size("num_hidden_layers", MAX_LAYERS)?;
    let list = fields.numbers(key, MAX_LAYERS)?;
    match list.first().map(|&first| (first, first as usize)) {
        Some((first, found))
            if found <= limit && list.len() == layers && list.iter().all(|&of| of == first) =>
        {
            Ok(Some(found))
        }
        _ => Err(fields.wrong(key, format!("the same number for each of {layers} layers"))),
    }
}

/// Reads RoPE. With `alpha`, the settings of type `dynamic` are the base times alpha^(d / (d - 2)) of heads of d
/// elements, and their other keys have no effect.
fn rope_of(fields: &Fields, head_dim: usize) -> Result<RopeConfig, ImportError> {
    const ALPHA: &str = "alpha";
    let scaling = fields.object("rope_scaling")?.filter(|rope| !rope.is_empty());
    let parameters = fields.object("rope_parameters")?.filter(|rope| !rope.is_empty());
    let found = scaling.as_ref().or(parameters.as_ref());
    let Some(own) = found.filter(|rope| rope.get(ALPHA).is_some()) else {
        return keys::rope(fields, head_dim);
    };
    if scaling.is_some() && fields.member("rope_parameters").is_some() {
        return Err(
            fields.unsupported("rope_scaling", "supported: one of it and `rope_parameters`")
        );
    }
    rope::stretched(fields, own, head_dim)
}

/// Rejects options that transformers does not compute, or does not read.
fn refuse_options(fields: &Fields) -> Result<(), ImportError> {
    if fields.boolean("mlp_bias")? == Some(true) {
        return Err(fields.unsupported("mlp_bias", "supported: false"));
    }
    for key in ["norm_topk_prob", "use_mixed_mlp_moe", "use_qk_norm", "use_rotary_pos_emb"] {
        if fields.boolean(key)? == Some(false) {
            return Err(fields.unsupported(key, "supported: true"));
        }
    }
    if fields.text("norm_type")?.is_some_and(|found| found != "rms") {
        return Err(fields.unsupported("norm_type", "supported: rms"));
    }
    for (key, only) in [("moe_layer_num_skipped", 0.0), ("routed_scaling_factor", 1.0)] {
        if fields.number(key)?.is_some_and(|found| found != only) {
            return Err(fields.unsupported(key, &format!("supported: {only}")));
        }
    }
    Ok(())
}
