//! Laguna (poolside): attention whose number of heads and RoPE depend on the layer, with gates by softplus.
//! The first layers are dense, the others mixtures with sigmoid scores and a shared expert.

use serde_json::Value;

use super::keys::{self, Parts};
use super::{
    Architecture, AttentionConfig, ExpertVector, Family, FeedForward, LayerConfig, ModelConfig,
    Multipliers, OutputGate, QkNorm, RopeConfig, RouterConfig, RouterScore, SharedExpert,
    SharedGate, TokenMixer, rope, routed,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{MAX_HEADS, MAX_LAYERS, MAX_WIDTH};

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::Laguna,
    model_type: "laguna",
    class: "LagunaForCausalLM",
    keys: &[
        "attention_bias",
        "auto_map",
        "decoder_sparse_step",
        "gating",
        "gating_types",
        "mlp_layer_types",
        "mlp_only_layers",
        "moe_apply_router_weight_on_input",
        "moe_intermediate_size",
        "moe_routed_scaling_factor",
        "moe_router_logit_softcapping",
        "norm_topk_prob",
        "num_attention_heads_per_layer",
        "num_experts",
        "shared_expert_intermediate_size",
        "sliding_window",
    ],
    read,
};

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    refuse_options(fields)?;
    let dense = dense_layers(fields)?;
    let heads = heads(fields, dense.len())?;
    let mut attention = keys::attention_with(fields, |fields, head_dim| {
        refuse_beside(fields)?;
        rope_of(fields, head_dim, FULL)
    })?;
    attention.qk_norm = QkNorm::PerHead;
    attention.output_gate = gate(fields, dense.len())?;
    let windows = keys::windows(fields, |_| false)?;
    let local = match windows.iter().any(Option::is_some) {
        true => rope_of(fields, attention.head_dim, SLIDING)?,
        false => attention.rope,
    };
    let layer = |((window, is_dense), num_attention_heads): ((Option<usize>, bool), usize)| {
        let rope = if window.is_some() { local } else { attention.rope };
        let mixer =
            AttentionConfig { num_attention_heads, sliding_window: window, rope, ..attention };
        let feed_forward = if is_dense { keys::dense(fields)? } else { mixture(fields)? };
        Ok(LayerConfig { mixer: TokenMixer::Attention(mixer), feed_forward })
    };
    let layers = windows.into_iter().zip(dense).zip(heads).map(layer);
    let layers = layers.collect::<Result<Vec<_>, ImportError>>()?;
    let router = RouterConfig {
        score: RouterScore::Sigmoid,
        scale: keys::factor(fields, "moe_routed_scaling_factor")?,
        selection_bias: ExpertVector::Present,
        ..RouterConfig::softmax(true)
    };
    let multipliers = Multipliers::NONE;
    let architecture = FAMILY.architecture;
    keys::model(fields, Parts { architecture, layers, router: Some(router), multipliers })
}

/// Returns whether each layer is dense. Without `mlp_layer_types`, the first layer is.
fn dense_layers(fields: &Fields) -> Result<Vec<bool>, ImportError> {
    const DENSE: &str = "mlp_only_layers";
    let count = fields.required_size("num_hidden_layers", MAX_LAYERS)?;
    // Default: the layers that transformers takes where the key is absent.
    let dense = routed::dense_by_type(fields)?
        .unwrap_or_else(|| (0..count).map(|layer| layer == 0).collect());
    // transformers does not read the older key.
    if fields.get(DENSE).is_some() {
        let listed = fields.numbers(DENSE, MAX_LAYERS)?;
        let is_listed = |layer: usize| listed.iter().any(|&listed| listed as usize == layer);
        if dense.iter().enumerate().any(|(layer, &dense)| is_listed(layer) != dense) {
            return Err(fields.wrong(DENSE, "the layers that `mlp_layer_types` gives"));
        }
    }
    Ok(dense)
}

/// Returns the number of query heads of each layer.
fn heads(fields: &Fields, layers: usize) -> Result<Vec<usize>, ImportError> {
    const KEY: &str = "num_attention_heads_per_layer";
    if fields.get(KEY).is_none() {
        let heads = fields.required_size("num_attention_heads", MAX_HEADS)?;
        return Ok(vec![heads; layers]);
    }
    let of_group = fields.required_size("num_key_value_heads", MAX_HEADS)?;
    let found: Vec<usize> =
        fields.numbers(KEY, MAX_LAYERS)?.into_iter().map(|heads| heads as usize).collect();
    let is_usable =
        |heads: &usize| (1..=MAX_HEADS).contains(heads) && heads.is_multiple_of(of_group);
    if found.len() != layers || !found.iter().all(is_usable) {
        let expected = format!("{layers} multiples of `num_key_value_heads` = {of_group}");
        return Err(fields.wrong(KEY, expected));
    }
    Ok(found)
}

fn mixture(fields: &Fields) -> Result<FeedForward, ImportError> {
    let intermediate_size = fields.required_size("shared_expert_intermediate_size", MAX_WIDTH)?;
    let shared = SharedExpert { intermediate_size, gate: SharedGate::Open };
    keys::mixture(fields, "num_experts", "moe_intermediate_size", Some(shared))
}

/// Returns the gate of all layers. `gating_types`, which transformers does not read, must agree.
fn gate(fields: &Fields, layers: usize) -> Result<OutputGate, ImportError> {
    const KEY: &str = "gating";
    const KINDS: &str = "gating_types";
    let (gate, kind) = match fields.get(KEY) {
        Some(Value::Bool(true)) => (OutputGate::SoftplusPerHead, "per_head"),
        Some(Value::String(kind)) if kind == "per-head" => {
            (OutputGate::SoftplusPerHead, "per_head")
        }
        Some(Value::String(kind)) if kind == "per-element" => (OutputGate::Softplus, "per_element"),
        _ => return Err(fields.unsupported(KEY, "supported: true, per-head, per-element")),
    };
    let expected: Vec<Value> = vec![Value::from(kind); layers];
    if fields.get(KINDS).is_some_and(|found| found.as_array() != Some(&expected)) {
        return Err(fields.wrong(KINDS, format!("{layers} times {kind}, as `{KEY}` says")));
    }
    Ok(gate)
}

/// Rejects RoPE settings outside `rope_parameters`, which transformers does not read.
fn refuse_beside(fields: &Fields) -> Result<(), ImportError> {
    for key in ["partial_rotary_factor", "rope_scaling", "rope_theta"] {
        if fields.member(key).is_some() {
            return Err(fields.unsupported(key, "supported: within `rope_parameters`"));
        }
    }
    Ok(())
}

/// Reads the RoPE settings of a kind of layers.
fn rope_of(fields: &Fields, head_dim: usize, kind: &str) -> Result<RopeConfig, ImportError> {
    const KEY: &str = "rope_parameters";
    const ORIGINAL: &str = "original_max_position_embeddings";
    let all = fields.object(KEY)?.ok_or_else(|| fields.wrong(KEY, "an object"))?;
    let known = [FULL, SLIDING, ORIGINAL];
    if let Some((key, value)) = all.members().find(|(key, _)| !known.contains(key)) {
        return Err(all.unknown(key, value));
    }
    let own = all.object(kind)?.ok_or_else(|| all.wrong(kind, "an object"))?;
    // Published beside the kinds, where transformers does not read it.
    if kind == FULL && all.get(ORIGINAL).is_some_and(|beside| own.get(ORIGINAL) != Some(beside)) {
        return Err(all.wrong(ORIGINAL, format!("the value within `{kind}`")));
    }
    // transformers does not look for the key in the settings of a kind of layers, and truncates.
    own.refuse_null("truncate")?;
    if own.boolean("truncate")? == Some(false) {
        return Err(own.unsupported("truncate", "supported: true"));
    }
    rope::of_layers(fields, &own, head_dim)
}

/// Rejects options that transformers does not compute, or does not read.
fn refuse_options(fields: &Fields) -> Result<(), ImportError> {
    for key in ["attention_bias", "moe_apply_router_weight_on_input"] {
        if fields.boolean(key)? == Some(true) {
            return Err(fields.unsupported(key, "supported: false"));
        }
    }
    if fields.boolean("norm_topk_prob")? == Some(false) {
        return Err(fields.unsupported("norm_topk_prob", "supported: true"));
    }
    const CAP: &str = "moe_router_logit_softcapping";
    if fields.number(CAP)?.is_some_and(|cap| cap > 0.0) {
        return Err(fields.unsupported(CAP, "supported: 0"));
    }
    const STEP: &str = "decoder_sparse_step";
    match fields.size(STEP, MAX_LAYERS)? {
        None | Some(1) => Ok(()),
        Some(_) => Err(fields.unsupported(STEP, "supported: 1")),
    }
}
