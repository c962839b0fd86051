//! Tensor names of Granite MoE: one tensor for all experts of a layer, with gate rows above up rows. A shared
//! expert has the same layout.

use super::{
    FloatChange, FloatSource, Naming, Runs, TensorSlice, attention_matrix, float_with,
    is_redundant, table,
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
    if let (Some(part), None) = (mamba2_matrix(id.kind), id.expert) {
        return Some(TensorSlice::whole(format!("model.layers.{layer}.{part}")));
    }
    let layer_config = config.layers.get(usize::try_from(layer).ok()?)?;
    let (owner, width) = match (id.expert, layer_config.feed_forward) {
        (Some(_), FeedForward::Moe { moe_intermediate_size, .. }) => {
            ("block_sparse_moe", moe_intermediate_size)
        }
        (Some(_), FeedForward::Absent | FeedForward::Dense { .. }) => return None,
        // Granite 4 without experts keeps the shared expert's name for the dense part.
        (None, feed_forward) => ("shared_mlp", feed_forward.dense_size()?),
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

fn mamba2_matrix(kind: MatrixKind) -> Option<&'static str> {
    match kind {
        MatrixKind::Mamba2In => Some("mamba.in_proj.weight"),
        MatrixKind::Mamba2Out => Some("mamba.out_proj.weight"),
        _ => None,
    }
}

fn float(_: &ModelConfig, id: FloatId) -> Option<FloatSource> {
    let source = float_with(id, |kind| match kind {
        FloatKind::Router => Some("block_sparse_moe.router.layer.weight"),
        FloatKind::Mamba2Conv => Some("mamba.conv1d.weight"),
        FloatKind::Mamba2ConvBias => Some("mamba.conv1d.bias"),
        FloatKind::Mamba2InBias => Some("mamba.in_proj.bias"),
        FloatKind::Mamba2OutBias => Some("mamba.out_proj.bias"),
        FloatKind::Mamba2Decay => Some("mamba.A_log"),
        FloatKind::Mamba2TimeBias => Some("mamba.dt_bias"),
        FloatKind::Mamba2Skip => Some("mamba.D"),
        FloatKind::Mamba2Norm => Some("mamba.norm.weight"),
        _ => None,
    });
    let change = match id.kind {
        FloatKind::Mamba2Decay => FloatChange::NegativeExp,
        _ => FloatChange::Kept,
    };
    source.map(|source| FloatSource { change, ..source })
}
