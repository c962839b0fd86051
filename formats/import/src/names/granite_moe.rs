//! Tensor names of Granite MoE: one tensor for all experts of a layer, with gate rows above up rows. A shared
//! expert has the same layout.

use super::{
    FloatSource, Naming, Runs, TensorSlice, attention_matrix, float_with, is_redundant, table,
};
use crate::config::{FeedForward, ModelConfig};
use nestling_formats::{FloatId, FloatKind, MatrixId, MatrixKind};

pub(super) const NAMING: Naming = Naming { matrix, alternative: None, float, is_redundant };

fn matrix(config: &ModelConfig, id: MatrixId) -> Vec<TensorSlice> {
    slice(config, id).into_iter().collect()
}

fn slice(config: &ModelConfig, id: MatrixId) -> Option<TensorSlice> {
    if let Some(table) = table(id) {
        return Some(TensorSlice::whole(table));
    }
    let layer = id.layer?;
    if let (Some(part), None) = (attention_matrix(id.kind), id.expert) {
        return Some(TensorSlice::whole(format!("model.layers.{layer}.{part}")));
    }
    let layer_config = config.layers.get(usize::try_from(layer).ok()?)?;
    let FeedForward::Moe { moe_intermediate_size, shared, .. } = layer_config.feed_forward else {
        return None;
    };
    let (owner, width) = match id.expert {
        Some(_) => ("block_sparse_moe", moe_intermediate_size),
        None => ("shared_mlp", shared?.intermediate_size),
    };
    let (part, rows) = match id.kind {
        MatrixKind::Gate => ("input_linear", Runs::range(0, width)),
        MatrixKind::Up => ("input_linear", Runs::range(width, width)),
        MatrixKind::Down => ("output_linear", Runs::ALL),
        _ => return None,
    };
    let name = format!("model.layers.{layer}.{owner}.{part}.weight");
    let index = id.expert.map(usize::try_from).transpose().ok()?;
    Some(TensorSlice { index, rows, ..TensorSlice::whole(name) })
}

fn float(_: &ModelConfig, id: FloatId) -> Option<FloatSource> {
    float_with(id, |kind| match kind {
        FloatKind::Router => Some("block_sparse_moe.router.layer.weight"),
        _ => None,
    })
}
