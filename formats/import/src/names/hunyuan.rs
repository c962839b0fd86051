//! Tensor names of Hunyuan-A13B: Qwen's, with norms of heads, a router and a shared expert of its own.

use super::{FloatSource, Naming, TensorSlice, deepseek, float_with, is_redundant};
use crate::config::ModelConfig;
use nestling_formats::{FloatId, FloatKind, MatrixId, MatrixKind};

pub(super) const NAMING: Naming = Naming { matrix, alternative: None, float, is_redundant };

fn matrix(config: &ModelConfig, id: MatrixId) -> Vec<TensorSlice> {
    let MatrixId { kind, layer: Some(layer), expert: None } = id else {
        return (deepseek::NAMING.matrix)(config, id);
    };
    let part = match kind {
        MatrixKind::Gate => "gate_proj",
        MatrixKind::Up => "up_proj",
        MatrixKind::Down => "down_proj",
        _ => return (deepseek::NAMING.matrix)(config, id),
    };
    vec![TensorSlice::whole(format!("model.layers.{layer}.mlp.shared_mlp.{part}.weight"))]
}

fn float(_: &ModelConfig, id: FloatId) -> Option<FloatSource> {
    float_with(id, |kind| match kind {
        FloatKind::QueryNorm => Some("self_attn.query_layernorm.weight"),
        FloatKind::KeyNorm => Some("self_attn.key_layernorm.weight"),
        FloatKind::Router => Some("mlp.gate.wg.weight"),
        _ => None,
    })
}
