//! Qwen1.5-MoE and Qwen2-MoE: a shared expert with a sigmoid gate, and biases of queries, keys and values.

use super::keys::{self, Parts};
use super::{
    Architecture, AttentionConfig, Family, ModelConfig, Multipliers, RouterConfig, SharedExpert,
    SharedGate, TokenMixer,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{MAX_LAYERS, MAX_WIDTH};

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::Qwen2Moe,
    model_type: "qwen2_moe",
    class: "Qwen2MoeForCausalLM",
    keys: &[
        "decoder_sparse_step",
        "mlp_only_layers",
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_experts",
        "qkv_bias",
        "shared_expert_intermediate_size",
        "sliding_window",
        "use_sliding_window",
    ],
    read,
};

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    let mut attention = keys::attention(fields)?;
    attention.bias = keys::input_bias(fields, "qkv_bias")?;
    let is_sparse = keys::sparse_layers(fields)?;
    let mut layers = keys::layers(fields, attention, |layer| {
        if !is_sparse(layer) {
            return keys::dense(fields);
        }
        let intermediate_size =
            fields.required_size("shared_expert_intermediate_size", MAX_WIDTH)?;
        let shared = SharedExpert { intermediate_size, gate: SharedGate::Sigmoid };
        keys::mixture(fields, "num_experts", "moe_intermediate_size", Some(shared))
    })?;
    for (layer, sliding_window) in layers.iter_mut().zip(windows(fields)?) {
        layer.mixer = TokenMixer::Attention(AttentionConfig { sliding_window, ..attention });
    }
    let router = RouterConfig::softmax(fields.boolean("norm_topk_prob")?.unwrap_or(false));
    let multipliers = Multipliers::NONE;
    keys::model(
        fields,
        Parts { architecture: FAMILY.architecture, layers, router: Some(router), multipliers },
    )
}

/// Returns the sliding window of each layer. If enabled, layers with an even index below `max_window_layers`
/// have one.
fn windows(fields: &Fields) -> Result<Vec<Option<usize>>, ImportError> {
    if fields.boolean("use_sliding_window")? != Some(true) {
        let count = fields.required_size("num_hidden_layers", MAX_LAYERS)?;
        keys::full_attention(fields)?;
        return Ok(vec![None; count]);
    }
    // Default: unused, since the table of transformers' defaults has the key.
    let border = keys::count(fields, "max_window_layers", MAX_LAYERS)?.unwrap_or(0);
    keys::windows(fields, |layer| layer % 2 == 0 && layer < border)
}
