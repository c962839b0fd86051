//! Tensor names of Trinity: DeepSeek's, with a gate of attention and norms after each part.

use super::{FloatSource, Naming, TensorSlice, deepseek, float_with, is_redundant};
use crate::config::ModelConfig;
use nestling_formats::{FloatId, FloatKind, MatrixId, MatrixKind};

pub(super) const NAMING: Naming = Naming { matrix, alternative: None, float, is_redundant };

fn matrix(config: &ModelConfig, id: MatrixId) -> Vec<TensorSlice> {
    match id {
        MatrixId { kind: MatrixKind::QueryGate, layer: Some(layer), expert: None } => {
            let part = "self_attn.gate_proj.weight";
            vec![TensorSlice::whole(format!("model.layers.{layer}.{part}"))]
        }
        _ => (deepseek::NAMING.matrix)(config, id),
    }
}

fn float(_: &ModelConfig, id: FloatId) -> Option<FloatSource> {
    float_with(id, |kind| match kind {
        FloatKind::PostAttentionNorm => Some("post_attention_layernorm.weight"),
        FloatKind::FeedForwardNorm => Some("pre_mlp_layernorm.weight"),
        FloatKind::PostFeedForwardNorm => Some("post_mlp_layernorm.weight"),
        FloatKind::Router => Some("mlp.router.gate.weight"),
        FloatKind::RouterBias => Some("mlp.expert_bias"),
        _ => None,
    })
}
