//! Qwen's mixtures and OLMoE: `mlp.experts.E.gate_proj` and its like, one tensor per projection.

use super::{FloatSource, Naming, TensorSlice, attention_matrix, float_with, is_redundant, table};
use crate::config::ModelConfig;
use nestling_formats::{FloatId, FloatKind, MatrixId, MatrixKind};

pub(super) const NAMING: Naming = Naming { matrix, alternative: None, float, is_redundant };

fn matrix(config: &ModelConfig, id: MatrixId) -> Vec<TensorSlice> {
    name(config, id).map(TensorSlice::whole).into_iter().collect()
}

fn name(config: &ModelConfig, id: MatrixId) -> Option<String> {
    if let Some(table) = table(id) {
        return Some(table.into());
    }
    let layer = id.layer?;
    if let (Some(part), None) = (attention_matrix(id.kind), id.expert) {
        return Some(format!("model.layers.{layer}.{part}"));
    }
    let part = match id.kind {
        MatrixKind::Gate => "gate_proj",
        MatrixKind::Up => "up_proj",
        MatrixKind::Down => "down_proj",
        _ => return None,
    };
    let owner = match id.expert {
        Some(expert) => format!("experts.{expert}."),
        None if config.is_mixture(layer) => "shared_expert.".into(),
        None => String::new(),
    };
    Some(format!("model.layers.{layer}.mlp.{owner}{part}.weight"))
}

fn float(_: &ModelConfig, id: FloatId) -> Option<FloatSource> {
    float_with(id, |kind| match kind {
        FloatKind::Router => Some("mlp.gate.weight"),
        FloatKind::SharedGate => Some("mlp.shared_expert_gate.weight"),
        _ => None,
    })
}
