//! ERNIE-4.5: adjacent RoPE pairs, and softmax scores with a selection bias. Multi-token prediction layers
//! are ignored.

use super::keys::{self, Parts};
use super::{
    Architecture, ExpertVector, Family, ModelConfig, Multipliers, RopePairs, RouterConfig,
    SharedExpert, SharedGate,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{MAX_EXPERTS, MAX_LAYERS, MAX_WIDTH};

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::Ernie45Moe,
    model_type: "ernie4_5_moe",
    class: "Ernie4_5_MoeForCausalLM",
    keys: &[
        "auto_map",
        "moe_capacity",
        "moe_gate",
        "moe_intermediate_size",
        "moe_k",
        "moe_layer_end_index",
        "moe_layer_interval",
        "moe_layer_start_index",
        "moe_norm_min",
        "moe_num_experts",
        "moe_num_shared_experts",
        "moe_use_aux_free",
        "num_nextn_predict_layers",
        "use_bias",
        "use_rmsnorm",
    ],
    read,
};

/// Minimum divisor when expert weights are normalized. No sum is smaller, so it has no effect.
const NORM_MIN: f64 = 1e-12;

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    keys::full_attention(fields)?;
    refuse_options(fields)?;
    let mut attention = keys::attention(fields)?;
    attention.rope_pairs = RopePairs::Adjacent;
    let is_mixture = mixtures(fields)?;
    let shared = shared(fields)?;
    let layers = keys::layers(fields, attention, |layer| {
        if !is_mixture(layer as usize) {
            return keys::dense(fields);
        }
        keys::mixture_of(fields, "moe_num_experts", "moe_k", "moe_intermediate_size", shared)
    })?;
    let selection_bias = ExpertVector::Present;
    let router = RouterConfig { selection_bias, ..RouterConfig::softmax(true) };
    let multipliers = Multipliers::NONE;
    keys::model(
        fields,
        Parts { architecture: FAMILY.architecture, layers, router: Some(router), multipliers },
    )
}

/// Returns a function that tests whether a layer is a mixture: one per `moe_layer_interval` layers of a
/// range.
fn mixtures(fields: &Fields) -> Result<impl Fn(usize) -> bool + use<>, ImportError> {
    const END: &str = "moe_layer_end_index";
    let step = fields.required_size("moe_layer_interval", MAX_LAYERS)?;
    let start = keys::count(fields, "moe_layer_start_index", MAX_LAYERS)?;
    let start = start.ok_or_else(|| fields.wrong("moe_layer_start_index", "a layer"))?;
    let end = match fields.number(END)? {
        None => return Err(fields.wrong(END, "a layer, or -1 for the last one")),
        Some(-1.0) => MAX_LAYERS,
        // Default: 0, the first layer, which `count` returns as a number too.
        Some(_) => keys::count(fields, END, MAX_LAYERS)?.unwrap_or(0),
    };
    Ok(move |layer: usize| (layer + 1).is_multiple_of(step) && (start..=end).contains(&layer))
}

/// Reads the shared experts. Several experts of one size equal one expert of their total width.
fn shared(fields: &Fields) -> Result<Option<SharedExpert>, ImportError> {
    const KEY: &str = "moe_num_shared_experts";
    let width = fields.required_size("moe_intermediate_size", MAX_WIDTH)?;
    let count = keys::count(fields, KEY, MAX_EXPERTS)?;
    let count = count.ok_or_else(|| fields.wrong(KEY, "a number of experts"))?;
    let intermediate_size = count.saturating_mul(width);
    if intermediate_size > MAX_WIDTH {
        let expected = format!("at most {} of `moe_intermediate_size`", MAX_WIDTH / width);
        return Err(fields.wrong(KEY, expected));
    }
    Ok((count > 0).then_some(SharedExpert { intermediate_size, gate: SharedGate::Open }))
}

/// Rejects options that contradict the family's fixed behaviour.
fn refuse_options(fields: &Fields) -> Result<(), ImportError> {
    if fields.boolean("use_bias")? == Some(true) {
        return Err(fields.unsupported("use_bias", "supported: false"));
    }
    for key in ["moe_use_aux_free", "use_rmsnorm"] {
        if fields.boolean(key)? == Some(false) {
            return Err(fields.unsupported(key, "supported: true"));
        }
    }
    if fields.text("moe_gate")?.is_some_and(|found| found != "topk") {
        return Err(fields.unsupported("moe_gate", "supported: topk"));
    }
    match fields.number("moe_norm_min")? {
        Some(least) if least <= NORM_MIN => Ok(()),
        _ => Err(fields.unsupported("moe_norm_min", &format!("supported: at most {NORM_MIN:e}"))),
    }
}
