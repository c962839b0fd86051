//! Qwen3-Next and the text part of Qwen3.5-MoE and Qwen3.6-MoE. Gated DeltaNet layers are interleaved with
//! gated attention, and the shared expert has a sigmoid gate.

use super::keys::{self, Parts};
use super::{
    Architecture, DeltaNetConfig, Family, FeedForward, LayerConfig, ModelConfig, Multipliers,
    OutputGate, QkNorm, RouterConfig, SharedExpert, SharedGate, TokenMixer,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{MAX_CONV_KERNEL, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_WIDTH};

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::Qwen3Next,
    model_type: "qwen3_next",
    class: "Qwen3NextForCausalLM",
    keys: TEXT_KEYS,
    read,
};

/// Keys common to both families.
pub(super) const TEXT_KEYS: &[&str] = &[
    "attention_bias",
    "attn_output_gate",
    "decoder_sparse_step",
    "full_attention_interval",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "mamba_ssm_dtype",
    "mlp_only_layers",
    "moe_intermediate_size",
    "mtp_num_hidden_layers",
    "norm_topk_prob",
    "num_experts",
    "shared_expert_intermediate_size",
];

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    read_text(fields, FAMILY.architecture)
}

pub(super) fn read_text(
    fields: &Fields,
    architecture: Architecture,
) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    if fields.boolean("attn_output_gate")? == Some(false) {
        return Err(fields.unsupported("attn_output_gate", "supported: true"));
    }
    let mut attention = keys::attention_with(fields, keys::partial_rope)?;
    attention.qk_norm = QkNorm::PerHead;
    attention.bias = keys::attention_bias(fields)?;
    attention.output_gate = OutputGate::Sigmoid;
    let delta_net = TokenMixer::DeltaNet(delta_net(fields)?);
    let is_full = full_layers(fields)?;
    // Files of Qwen3.5 contain these keys of Qwen3-Next, but its code ignores them.
    let is_next = architecture == Architecture::Qwen3Next;
    let sparse = keys::sparse_layers(fields)?;
    let is_sparse = |layer| !is_next || sparse(layer);
    let norm_topk_prob = !is_next || fields.boolean("norm_topk_prob")?.unwrap_or(false);
    let count = fields.required_size("num_hidden_layers", MAX_LAYERS)?;
    let layer = |layer| {
        let mixer = match is_full(layer) {
            true => TokenMixer::Attention(attention),
            false => delta_net,
        };
        let feed_forward = match is_sparse(layer) {
            true => mixture(fields)?,
            false => keys::dense(fields)?,
        };
        Ok(LayerConfig { mixer, feed_forward })
    };
    let layers = (0u32..).take(count).map(layer).collect::<Result<_, ImportError>>()?;
    let router = RouterConfig::softmax(norm_topk_prob);
    let multipliers = Multipliers::NONE;
    keys::model(fields, Parts { architecture, layers, router: Some(router), multipliers })
}

fn mixture(fields: &Fields) -> Result<FeedForward, ImportError> {
    let intermediate_size = fields.required_size("shared_expert_intermediate_size", MAX_WIDTH)?;
    let shared = SharedExpert { intermediate_size, gate: SharedGate::Sigmoid };
    keys::mixture(fields, "num_experts", "moe_intermediate_size", Some(shared))
}

fn delta_net(fields: &Fields) -> Result<DeltaNetConfig, ImportError> {
    let config = DeltaNetConfig {
        num_key_heads: fields.required_size("linear_num_key_heads", MAX_HEADS)?,
        num_value_heads: fields.required_size("linear_num_value_heads", MAX_HEADS)?,
        key_head_dim: fields.required_size("linear_key_head_dim", MAX_HEAD_DIM)?,
        value_head_dim: fields.required_size("linear_value_head_dim", MAX_HEAD_DIM)?,
        conv_kernel_dim: fields.required_size("linear_conv_kernel_dim", MAX_CONV_KERNEL)?,
    };
    if config.num_value_heads.is_multiple_of(config.num_key_heads) {
        return Ok(config);
    }
    let expected = format!("a multiple of `linear_num_key_heads` = {}", config.num_key_heads);
    Err(fields.wrong("linear_num_value_heads", expected))
}

/// Returns a function that tests whether a layer is attention, from `layer_types`, or else the last layer of
/// each `full_attention_interval`.
fn full_layers(fields: &Fields) -> Result<impl Fn(u32) -> bool + use<>, ImportError> {
    let count = fields.required_size("num_hidden_layers", MAX_LAYERS)?;
    let interval = fields.required_size("full_attention_interval", MAX_LAYERS)?;
    let types = match fields.get("layer_types") {
        None => None,
        Some(serde_json::Value::Array(types)) if types.len() == count => {
            let full = types.iter().map(|kind| match kind.as_str() {
                Some("full_attention") => Some(true),
                Some("linear_attention") => Some(false),
                _ => None,
            });
            let supported = "supported: linear_attention, full_attention";
            let full = full.collect::<Option<Vec<bool>>>();
            Some(full.ok_or_else(|| fields.unsupported("layer_types", supported))?)
        }
        Some(_) => return Err(fields.wrong("layer_types", format!("a list of {count}"))),
    };
    Ok(move |layer: u32| match &types {
        Some(full) => full.get(layer as usize).copied().unwrap_or(false),
        None => (layer as usize + 1).is_multiple_of(interval),
    })
}
