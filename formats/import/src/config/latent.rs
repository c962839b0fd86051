//! Keys that families with latent attention share: DeepSeek's layout of layers.

use super::keys;
use super::{
    ExpertGroups, ExpertVector, FeedForward, GroupScore, LatentConfig, LayerConfig, RopePairs,
    RopeScaling, RouterConfig, RouterScore, SharedExpert, SharedGate, TokenMixer,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{
    MAX_EXPERT_GROUPS, MAX_EXPERTS, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_WIDTH,
};

/// The norms of latents keep the default of the code that the models were published with, whatever
/// `rms_norm_eps` is.
const LATENT_NORM_EPS: f32 = 1e-6;

/// Attention through a latent.
pub(super) fn attention(fields: &Fields, pairs: RopePairs) -> Result<LatentConfig, ImportError> {
    for key in ["attention_bias", "mlp_bias"] {
        if fields.boolean(key)? == Some(true) {
            return Err(fields.unsupported(key, "supported: false"));
        }
    }
    let heads = fields.required_size("num_attention_heads", MAX_HEADS)?;
    if fields.size("num_key_value_heads", MAX_HEADS)?.is_some_and(|count| count != heads) {
        let supported = format!("supported: `num_attention_heads` = {heads}");
        return Err(fields.unsupported("num_key_value_heads", &supported));
    }
    let rope_dim = fields.required_size("qk_rope_head_dim", MAX_HEAD_DIM)?;
    if !rope_dim.is_multiple_of(2) {
        return Err(fields.wrong("qk_rope_head_dim", "an even number"));
    }
    let nope_dim = fields.required_size("qk_nope_head_dim", MAX_HEAD_DIM)?;
    for (key, expected) in [("head_dim", rope_dim), ("qk_head_dim", nope_dim + rope_dim)] {
        if fields.size(key, 2 * MAX_HEAD_DIM)?.is_some_and(|found| found != expected) {
            return Err(fields.wrong(key, format!("{expected}, or no such key")));
        }
    }
    let rope = keys::rope(fields, rope_dim)?;
    // Where YaRN stretches angles, queries and keys are multiplied by a magnitude each.
    let magnitude = match &rope.scaling {
        RopeScaling::Yarn(yarn) => yarn.mscale(yarn.mscale_all_dim),
        RopeScaling::None | RopeScaling::Proportional { .. } => 1.0,
    };
    Ok(LatentConfig {
        num_attention_heads: heads,
        q_lora_rank: fields.size("q_lora_rank", MAX_WIDTH)?,
        kv_lora_rank: fields.required_size("kv_lora_rank", MAX_WIDTH)?,
        qk_nope_head_dim: nope_dim,
        qk_rope_head_dim: rope_dim,
        v_head_dim: fields.required_size("v_head_dim", MAX_HEAD_DIM)?,
        scale: (magnitude * magnitude / ((nope_dim + rope_dim) as f64).sqrt()) as f32,
        rope,
        rope_pairs: pairs,
        norm_eps: LATENT_NORM_EPS,
    })
}

/// Layers with one attention, dense where `is_dense` says so, else mixtures with shared experts.
pub(super) fn layers(
    fields: &Fields,
    attention: LatentConfig,
    is_dense: impl Fn(usize) -> bool,
) -> Result<Vec<LayerConfig>, ImportError> {
    keys::full_attention(fields)?;
    let count = fields.required_size("num_hidden_layers", MAX_LAYERS)?;
    if fields.size("moe_layer_freq", MAX_LAYERS)?.is_some_and(|every| every != 1) {
        return Err(fields.unsupported("moe_layer_freq", "supported: 1"));
    }
    let mixer = TokenMixer::Latent(attention);
    let layer = |layer| {
        let feed_forward = match is_dense(layer) {
            true => keys::dense(fields)?,
            false => mixture(fields)?,
        };
        Ok(LayerConfig { mixer, feed_forward })
    };
    (0..count).map(layer).collect()
}

/// Shared experts of one size are one expert as wide as all of them.
fn mixture(fields: &Fields) -> Result<FeedForward, ImportError> {
    let width = fields.required_size("moe_intermediate_size", MAX_WIDTH)?;
    let shared = match keys::count(fields, "n_shared_experts", MAX_EXPERTS)? {
        None | Some(0) => None,
        Some(count) => {
            let intermediate_size = count.saturating_mul(width);
            if intermediate_size > MAX_WIDTH {
                let expected = format!("at most {} of `moe_intermediate_size`", MAX_WIDTH / width);
                return Err(fields.wrong("n_shared_experts", expected));
            }
            Some(SharedExpert { intermediate_size, gate: SharedGate::Open })
        }
    };
    keys::mixture(fields, "n_routed_experts", "moe_intermediate_size", shared)
}

/// Sigmoid scores, a bias for the choice, and groups compared by their two best experts.
pub(super) fn sigmoid_router(fields: &Fields) -> Result<RouterConfig, ImportError> {
    for (key, only) in [("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")] {
        if fields.text(key)?.is_some_and(|found| found != only) {
            return Err(fields.unsupported(key, &format!("supported: {only}")));
        }
    }
    Ok(RouterConfig {
        score: RouterScore::Sigmoid,
        norm_topk_prob: fields.boolean("norm_topk_prob")?.unwrap_or(false),
        scale: keys::factor(fields, "routed_scaling_factor")?,
        selection_bias: ExpertVector::Present,
        groups: groups(fields, GroupScore::TwoBest)?,
        ..RouterConfig::softmax(false)
    })
}

/// Which elements are turned with each other, by `rope_interleave`.
pub(super) fn rope_pairs(fields: &Fields) -> Result<RopePairs, ImportError> {
    Ok(match fields.boolean("rope_interleave")? {
        Some(true) => RopePairs::Adjacent,
        _ => RopePairs::Halves,
    })
}

/// The groups that experts are chosen from; none where all of them may be.
pub(super) fn groups(
    fields: &Fields,
    score: GroupScore,
) -> Result<Option<ExpertGroups>, ImportError> {
    let n_group = fields.required_size("n_group", MAX_EXPERT_GROUPS)?;
    let topk_group = match fields.size("topk_group", MAX_EXPERT_GROUPS)? {
        None if n_group == 1 => 1,
        None => return Err(fields.wrong("topk_group", "a number of groups")),
        Some(topk_group) => topk_group,
    };
    let experts = fields.required_size("n_routed_experts", MAX_EXPERTS)?;
    let size = experts / n_group;
    let least = match score {
        GroupScore::Best => 1,
        GroupScore::TwoBest => 2,
    };
    if !experts.is_multiple_of(n_group) || (n_group > 1 && size < least) {
        let expected = format!("equal groups of {least} or more of {experts} experts");
        return Err(fields.wrong("n_group", expected));
    }
    let chosen = fields.required_size("num_experts_per_tok", MAX_EXPERTS)?;
    if topk_group > n_group || topk_group * size < chosen {
        let expected = format!("groups, at most {n_group}, that hold {chosen} experts");
        return Err(fields.wrong("topk_group", expected));
    }
    Ok((topk_group < n_group).then_some(ExpertGroups { n_group, topk_group, score }))
}
