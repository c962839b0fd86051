//! Experts by the keys that DeepSeek gave them, which many families have: `n_routed_experts`,
//! `n_shared_experts`, groups, and scores by sigmoids.

use super::keys;
use super::{
    AttentionConfig, ExpertGroups, ExpertVector, FeedForward, GroupScore, LayerConfig,
    RouterConfig, RouterScore, SharedExpert, SharedGate,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{MAX_EXPERT_GROUPS, MAX_EXPERTS, MAX_LAYERS, MAX_WIDTH};

/// Keys of numbers of experts.
pub(super) struct Names {
    /// That of all routed ones.
    pub(super) experts: &'static str,
    /// That of shared ones.
    pub(super) shared: &'static str,
}

/// DeepSeek's.
const NAMES: Names = Names { experts: "n_routed_experts", shared: "n_shared_experts" };

/// Which layers are dense by `first_k_dense_replace`: so many from the first on.
pub(super) fn dense_layers(fields: &Fields) -> Result<impl Fn(usize) -> bool + use<>, ImportError> {
    // Default: that of transformers where its table has none.
    let dense = keys::count(fields, "first_k_dense_replace", MAX_LAYERS)?.unwrap_or(0);
    Ok(move |layer| layer < dense)
}

/// Refuses mixtures in only some of the layers after the first ones.
pub(super) fn refuse_sparser(fields: &Fields) -> Result<(), ImportError> {
    const KEY: &str = "moe_layer_freq";
    match fields.size(KEY, MAX_LAYERS)? {
        None | Some(1) => Ok(()),
        Some(_) => Err(fields.unsupported(KEY, "supported: 1")),
    }
}

/// Layers with one attention, the first of them dense.
pub(super) fn layers(
    fields: &Fields,
    attention: AttentionConfig,
) -> Result<Vec<LayerConfig>, ImportError> {
    layers_of(fields, attention, &NAMES)
}

/// [`layers`] of a family that has other keys.
pub(super) fn layers_of(
    fields: &Fields,
    attention: AttentionConfig,
    names: &Names,
) -> Result<Vec<LayerConfig>, ImportError> {
    let is_dense = dense_layers(fields)?;
    keys::layers(fields, attention, |layer| match is_dense(layer as usize) {
        true => keys::dense(fields),
        false => mixture_of(fields, names),
    })
}

/// Shared experts of one size are one expert as wide as all of them.
pub(super) fn mixture(fields: &Fields) -> Result<FeedForward, ImportError> {
    mixture_of(fields, &NAMES)
}

fn mixture_of(fields: &Fields, names: &Names) -> Result<FeedForward, ImportError> {
    let width = fields.required_size("moe_intermediate_size", MAX_WIDTH)?;
    let shared = match keys::count(fields, names.shared, MAX_EXPERTS)? {
        None | Some(0) => None,
        Some(count) => {
            let intermediate_size = count.saturating_mul(width);
            if intermediate_size > MAX_WIDTH {
                let expected = format!("at most {} of `moe_intermediate_size`", MAX_WIDTH / width);
                return Err(fields.wrong(names.shared, expected));
            }
            Some(SharedExpert { intermediate_size, gate: SharedGate::Open })
        }
    };
    keys::mixture(fields, names.experts, "moe_intermediate_size", shared)
}

/// Sigmoid scores, a bias for the choice, and groups compared by their two best experts.
pub(super) fn sigmoid_router(fields: &Fields) -> Result<RouterConfig, ImportError> {
    for (key, only) in [("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")] {
        if fields.text(key)?.is_some_and(|found| found != only) {
            return Err(fields.unsupported(key, &format!("supported: {only}")));
        }
    }
    sigmoids(fields, groups(fields, GroupScore::TwoBest)?)
}

/// Sigmoid scores and a bias for the choice from such groups.
pub(super) fn sigmoids(
    fields: &Fields,
    groups: Option<ExpertGroups>,
) -> Result<RouterConfig, ImportError> {
    Ok(RouterConfig {
        score: RouterScore::Sigmoid,
        norm_topk_prob: fields.boolean("norm_topk_prob")?.unwrap_or(false),
        scale: keys::factor(fields, "routed_scaling_factor")?,
        selection_bias: ExpertVector::Present,
        groups,
        ..RouterConfig::softmax(false)
    })
}

/// The groups that experts are chosen from; none where all of them may be.
pub(super) fn groups(
    fields: &Fields,
    score: GroupScore,
) -> Result<Option<ExpertGroups>, ImportError> {
    groups_of(fields, score, &NAMES)
}

/// [`groups`] of a family that has other keys.
pub(super) fn groups_of(
    fields: &Fields,
    score: GroupScore,
    names: &Names,
) -> Result<Option<ExpertGroups>, ImportError> {
    let n_group = fields.required_size("n_group", MAX_EXPERT_GROUPS)?;
    let topk_group = match fields.size("topk_group", MAX_EXPERT_GROUPS)? {
        None if n_group == 1 => 1,
        None => return Err(fields.wrong("topk_group", "a number of groups")),
        Some(topk_group) => topk_group,
    };
    let experts = fields.required_size(names.experts, MAX_EXPERTS)?;
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
