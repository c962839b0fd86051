//! Tensor names of LFM2: `operator_norm` before mixers, `conv` or `self_attn`, and `feed_forward.w1` (gate),
//! `w3` (up) and `w2` (down).

use super::{FloatSource, Naming, TensorSlice, is_redundant, table};
use crate::config::ModelConfig;
use nestling_formats::{FloatId, FloatKind, MatrixId, MatrixKind};

pub(super) const NAMING: Naming = Naming { matrix, alternative: None, float, is_redundant };

fn matrix(_: &ModelConfig, id: MatrixId) -> Vec<TensorSlice> {
    name(id).map(TensorSlice::whole).into_iter().collect()
}

fn name(id: MatrixId) -> Option<String> {
    if let Some(table) = table(id) {
        return Some(table.into());
    }
    let layer = id.layer?;
    let part = match (id.kind, id.expert) {
        (MatrixKind::Query, None) => "self_attn.q_proj",
        (MatrixKind::Key, None) => "self_attn.k_proj",
        (MatrixKind::Value, None) => "self_attn.v_proj",
        (MatrixKind::Output, None) => "self_attn.out_proj",
        (MatrixKind::ShortConvIn, None) => "conv.in_proj",
        (MatrixKind::ShortConvOut, None) => "conv.out_proj",
        (kind, expert) => {
            let part = match kind {
                MatrixKind::Gate => "w1",
                MatrixKind::Up => "w3",
                MatrixKind::Down => "w2",
                _ => return None,
            };
            let owner = expert.map_or(String::new(), |expert| format!("experts.{expert}."));
            return Some(format!("model.layers.{layer}.feed_forward.{owner}{part}.weight"));
        }
    };
    Some(format!("model.layers.{layer}.{part}.weight"))
}

fn float(_: &ModelConfig, id: FloatId) -> Option<FloatSource> {
    let Some(layer) = id.layer else {
        let is_norm = id.kind == FloatKind::FinalNorm;
        return is_norm.then(|| FloatSource::kept("model.embedding_norm.weight"));
    };
    let part = match id.kind {
        FloatKind::AttentionNorm => "operator_norm.weight",
        FloatKind::FeedForwardNorm => "ffn_norm.weight",
        FloatKind::QueryNorm => "self_attn.q_layernorm.weight",
        FloatKind::KeyNorm => "self_attn.k_layernorm.weight",
        FloatKind::ShortConvTaps => "conv.conv.weight",
        FloatKind::ShortConvBias => "conv.conv.bias",
        FloatKind::ShortConvInBias => "conv.in_proj.bias",
        FloatKind::ShortConvOutBias => "conv.out_proj.bias",
        FloatKind::Router => "feed_forward.gate.weight",
        FloatKind::RouterBias => "feed_forward.expert_bias",
        _ => return None,
    };
    Some(FloatSource::kept(format!("model.layers.{layer}.{part}")))
}
