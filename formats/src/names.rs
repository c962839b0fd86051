//! The names that checkpoints give to tensors. Strings live here and nowhere else.

use crate::config::Architecture;
use crate::{FloatId, FloatKind, MatrixId, MatrixKind};

/// The name of a matrix in a checkpoint; `None` for an id that the architecture cannot have.
pub fn matrix_tensor_name(architecture: Architecture, id: MatrixId) -> Option<String> {
    match architecture {
        Architecture::Qwen3Moe => qwen3_matrix(id),
    }
}

/// The name of a float tensor in a checkpoint; `None` for an id that the architecture cannot have.
pub fn float_tensor_name(architecture: Architecture, id: FloatId) -> Option<String> {
    match architecture {
        Architecture::Qwen3Moe => qwen3_float(id),
    }
}

fn qwen3_matrix(id: MatrixId) -> Option<String> {
    let MatrixId { kind, layer, expert } = id;
    let part = match kind {
        MatrixKind::Embedding | MatrixKind::Head => {
            if layer.is_some() || expert.is_some() {
                return None;
            }
            let head = kind == MatrixKind::Head;
            return Some(if head { "lm_head.weight" } else { "model.embed_tokens.weight" }.into());
        }
        MatrixKind::Query => "self_attn.q_proj",
        MatrixKind::Key => "self_attn.k_proj",
        MatrixKind::Value => "self_attn.v_proj",
        MatrixKind::Output => "self_attn.o_proj",
        MatrixKind::Gate => "gate_proj",
        MatrixKind::Up => "up_proj",
        MatrixKind::Down => "down_proj",
    };
    let layer = layer?;
    let feed_forward = matches!(kind, MatrixKind::Gate | MatrixKind::Up | MatrixKind::Down);
    match (feed_forward, expert) {
        (true, Some(expert)) => {
            Some(format!("model.layers.{layer}.mlp.experts.{expert}.{part}.weight"))
        }
        (true, None) => Some(format!("model.layers.{layer}.mlp.{part}.weight")),
        (false, None) => Some(format!("model.layers.{layer}.{part}.weight")),
        (false, Some(_)) => None,
    }
}

fn qwen3_float(id: FloatId) -> Option<String> {
    let part = match id.kind {
        FloatKind::FinalNorm => {
            return id.layer.is_none().then(|| "model.norm.weight".into());
        }
        FloatKind::AttentionNorm => "input_layernorm.weight",
        FloatKind::FeedForwardNorm => "post_attention_layernorm.weight",
        FloatKind::QueryNorm => "self_attn.q_norm.weight",
        FloatKind::KeyNorm => "self_attn.k_norm.weight",
        FloatKind::Router => "mlp.gate.weight",
        FloatKind::QueryBias => "self_attn.q_proj.bias",
        FloatKind::KeyBias => "self_attn.k_proj.bias",
        FloatKind::ValueBias => "self_attn.v_proj.bias",
        FloatKind::OutputBias => "self_attn.o_proj.bias",
    };
    Some(format!("model.layers.{}.{part}", id.layer?))
}

/// Whether a tensor that no id names may be left out without changing the model.
pub(crate) fn is_redundant(architecture: Architecture, name: &str, tied_head: bool) -> bool {
    match architecture {
        Architecture::Qwen3Moe => {
            // A tied head may be written out again; RoPE tables follow from the configuration.
            (tied_head && name == "lm_head.weight") || name.ends_with(".rotary_emb.inv_freq")
        }
    }
}
