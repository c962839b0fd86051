//! Tensor names of Mixtral and MiniMax-M2: `block_sparse_moe.experts.E.w1` (gate), `w3` (up) and `w2` (down).

use super::is_redundant_or_beyond;
use super::{FloatSource, Naming, TensorSlice, attention_matrix, float_with, is_redundant, table};
use crate::config::ModelConfig;
use nestling_formats::{FloatId, FloatKind, MatrixId, MatrixKind};

pub(super) const NAMING: Naming = Naming { matrix, alternative: None, float, is_redundant };

/// Names of MiniMax-M2, which may have multi-token prediction layers.
pub(super) const WITH_DRAFTS: Naming = Naming { is_redundant: is_redundant_or_beyond, ..NAMING };

fn matrix(_: &ModelConfig, id: MatrixId) -> Vec<TensorSlice> {
    name(id).map(TensorSlice::whole).into_iter().collect()
}

fn name(id: MatrixId) -> Option<String> {
    if let Some(table) = table(id) {
        return Some(table.into());
    }
    let layer = id.layer?;
    match (attention_matrix(id.kind), id.kind, id.expert) {
        (Some(part), _, None) => Some(format!("model.layers.{layer}.{part}")),
        (None, MatrixKind::Gate, Some(expert)) => Some(expert_name(layer, expert, "w1")),
        (None, MatrixKind::Up, Some(expert)) => Some(expert_name(layer, expert, "w3")),
        (None, MatrixKind::Down, Some(expert)) => Some(expert_name(layer, expert, "w2")),
        _ => None,
    }
}

fn expert_name(layer: u32, expert: u32, part: &str) -> String {
    format!("model.layers.{layer}.block_sparse_moe.experts.{expert}.{part}.weight")
}

fn float(_: &ModelConfig, id: FloatId) -> Option<FloatSource> {
    float_with(id, |kind| match kind {
        FloatKind::Router => Some("block_sparse_moe.gate.weight"),
        FloatKind::RouterBias => Some("block_sparse_moe.e_score_correction_bias"),
        _ => None,
    })
}
