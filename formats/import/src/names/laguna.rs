//! Tensor names of Laguna: DeepSeek's, with a gate of attention and one shared expert.

use super::{FloatSource, Naming, TensorSlice, deepseek, float_with, is_redundant};
use crate::config::ModelConfig;
use nestling_formats::{FloatId, FloatKind, MatrixId, MatrixKind};

pub(super) const NAMING: Naming = Naming { matrix, alternative: None, float, is_redundant };

fn matrix(config: &ModelConfig, id: MatrixId) -> Vec<TensorSlice> {
    let MatrixId { kind, layer: Some(layer), expert: None } = id else {
        return (deepseek::NAMING.matrix)(config, id);
    };
    let part = match kind {
        MatrixKind::QueryGate => "self_attn.g_proj",
        MatrixKind::Gate if config.is_mixture(layer) => "mlp.shared_expert.gate_proj",
        MatrixKind::Up if config.is_mixture(layer) => "mlp.shared_expert.up_proj",
        MatrixKind::Down if config.is_mixture(layer) => "mlp.shared_expert.down_proj",
        _ => return (deepseek::NAMING.matrix)(config, id),
    };
    vec![TensorSlice::whole(format!("model.layers.{layer}.{part}.weight"))]
}

fn float(_: &ModelConfig, id: FloatId) -> Option<FloatSource> {
    float_with(id, |kind| match kind {
        FloatKind::Router => Some("mlp.gate.weight"),
        FloatKind::RouterBias => Some("mlp.experts.e_score_correction_bias"),
        _ => None,
    })
}
