//! Tensor names of gpt-oss: one tensor `[experts, inputs, outputs]` for all experts of a layer, with gate and
//! up interleaved. In MXFP4 it is split into `_blocks` and `_scales`.

use super::{
    FloatSource, Naming, Runs, TensorSlice, attention_matrix, float_with, is_redundant, table,
};
use crate::config::ModelConfig;
use nestling_formats::{FloatId, FloatKind, MatrixId, MatrixKind};

pub(super) const NAMING: Naming = Naming { matrix, alternative: None, float, is_redundant };

/// Returns alternate indices, starting at `start`.
const fn every_other(start: usize) -> Runs {
    Runs { start, length: 1, stride: 2 }
}

fn matrix(_: &ModelConfig, id: MatrixId) -> Vec<TensorSlice> {
    slice(id).into_iter().collect()
}

fn slice(id: MatrixId) -> Option<TensorSlice> {
    if let Some(table) = table(id) {
        return Some(TensorSlice::whole(table));
    }
    let layer = id.layer?;
    if let (Some(part), None) = (attention_matrix(id.kind), id.expert) {
        return Some(TensorSlice::whole(format!("model.layers.{layer}.{part}")));
    }
    let (part, columns) = match id.kind {
        MatrixKind::Gate => ("gate_up_proj", every_other(0)),
        MatrixKind::Up => ("gate_up_proj", every_other(1)),
        MatrixKind::Down => ("down_proj", Runs::ALL),
        _ => return None,
    };
    let name = format!("model.layers.{layer}.mlp.experts.{part}");
    let index = Some(usize::try_from(id.expert?).ok()?);
    let columns = columns.into();
    Some(TensorSlice { index, columns, transposed: true, ..TensorSlice::whole(name) })
}

fn float(_: &ModelConfig, id: FloatId) -> Option<FloatSource> {
    let source = float_with(id, |kind| match kind {
        FloatKind::Router => Some("mlp.router.weight"),
        FloatKind::RouterLogitBias => Some("mlp.router.bias"),
        FloatKind::Sinks => Some("self_attn.sinks"),
        FloatKind::ExpertGateBias | FloatKind::ExpertUpBias => {
            Some("mlp.experts.gate_up_proj_bias")
        }
        FloatKind::ExpertDownBias => Some("mlp.experts.down_proj_bias"),
        _ => None,
    })?;
    let columns = match id.kind {
        FloatKind::ExpertGateBias => every_other(0),
        FloatKind::ExpertUpBias => every_other(1),
        _ => Runs::ALL,
    };
    Some(FloatSource { columns, ..source })
}
