//! MoE keys introduced by DeepSeek and used by many families: `n_routed_experts`, `n_shared_experts`, expert
//! groups and sigmoid scores.

use serde_json::Value;

use super::keys;
use super::{
    AttentionConfig, ExpertGroups, ExpertVector, FeedForward, GroupScore, LayerConfig,
    RouterConfig, RouterScore, SharedExpert, SharedGate,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{MAX_EXPERT_GROUPS, MAX_EXPERTS, MAX_LAYERS, MAX_WIDTH};

/// Keys of the numbers of experts.
pub(super) struct Names {
    pub(super) experts: &'static str,
    pub(super) shared: &'static str,
}

const NAMES: Names = Names { experts: "n_routed_experts", shared: "n_shared_experts" };

/// Returns a function that tests whether a layer is dense: the first `first_k_dense_replace` layers are.
pub(super) fn dense_layers(fields: &Fields) -> Result<impl Fn(usize) -> bool + use<>, ImportError> {
    // Default: 0, as in transformers, if its table has no default.
    let dense = keys::count(fields, "first_k_dense_replace", MAX_LAYERS)?.unwrap_or(0);
    Ok(move |layer| layer < dense)
}

/// Returns whether each layer is dense, from `mlp_layer_types` or else from `first_k_dense_replace`.
pub(super) fn dense_by_layer(fields: &Fields) -> Result<Vec<bool>, ImportError> {
    let count = fields.required_size("num_hidden_layers", MAX_LAYERS)?;
    match dense_by_type(fields)? {
        Some(dense) => Ok(dense),
        None => Ok((0..count).map(dense_layers(fields)?).collect()),
    }
}

/// Returns whether each layer is dense, from `mlp_layer_types` if the key is present.
pub(super) fn dense_by_type(fields: &Fields) -> Result<Option<Vec<bool>>, ImportError> {
    const KEY: &str = "mlp_layer_types";
    let count = fields.required_size("num_hidden_layers", MAX_LAYERS)?;
    let Some(types) = fields.get(KEY) else { return Ok(None) };
    let wrong = || fields.wrong(KEY, format!("{count} times dense or sparse"));
    let types = types.as_array().filter(|types| types.len() == count).ok_or_else(wrong)?;
    let is_dense = |kind: &Value| match kind.as_str() {
        Some("dense") => Ok(true),
        Some("sparse") => Ok(false),
        _ => Err(wrong()),
    };
    types.iter().map(is_dense).collect::<Result<_, _>>().map(Some)
}

/// Rejects mixtures that skip layers after the dense ones.
pub(super) fn refuse_sparser(fields: &Fields) -> Result<(), ImportError> {
    const KEY: &str = "moe_layer_freq";
    match fields.size(KEY, MAX_LAYERS)? {
        None | Some(1) => Ok(()),
        Some(_) => Err(fields.unsupported(KEY, "supported: 1")),
    }
}

/// Returns layers with the same attention, the first of them dense.
pub(super) fn layers(
    fields: &Fields,
    attention: AttentionConfig,
) -> Result<Vec<LayerConfig>, ImportError> {
    layers_of(fields, attention, &NAMES)
}

/// Returns [`layers`] with family-specific keys.
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

/// Reads the experts. Several shared experts of one size equal one expert of their total width.
pub(super) fn mixture(fields: &Fields) -> Result<FeedForward, ImportError> {
    mixture_of(fields, &NAMES)
}

/// Reads [`mixture`] with family-specific keys.
pub(super) fn mixture_of(fields: &Fields, names: &Names) -> Result<FeedForward, ImportError> {
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

/// Reads a router with sigmoid scores, a selection bias, and groups ranked by their two best experts.
pub(super) fn sigmoid_router(fields: &Fields) -> Result<RouterConfig, ImportError> {
    sigmoid_router_of(fields, groups(fields, GroupScore::TwoBest)?)
}

/// Reads [`sigmoid_router`] with groups from family-specific keys.
pub(super) fn sigmoid_router_of(
    fields: &Fields,
    groups: Option<ExpertGroups>,
) -> Result<RouterConfig, ImportError> {
    for (key, only) in [("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")] {
        if fields.text(key)?.is_some_and(|found| found != only) {
            return Err(fields.unsupported(key, &format!("supported: {only}")));
        }
    }
    sigmoids(fields, groups)
}

/// Returns a router with sigmoid scores and a selection bias, restricted to the given groups.
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

/// Returns the expert groups, or `None` if the selection is unrestricted.
pub(super) fn groups(
    fields: &Fields,
    score: GroupScore,
) -> Result<Option<ExpertGroups>, ImportError> {
    groups_of(fields, score, &NAMES)
}

/// Returns [`groups`] with family-specific keys.
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
