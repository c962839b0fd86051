//! Ling 2.0's tensor names: a combined tensor for queries, keys and values, and DeepSeek's names for experts.

use super::{FloatSource, Naming, Order, Runs, TensorSlice, deepseek, is_redundant_or_beyond};
use crate::config::{AttentionConfig, ModelConfig, TokenMixer};
use nestling_formats::{FloatId, FloatKind, MatrixId, MatrixKind};

pub(super) const NAMING: Naming =
    Naming { matrix, alternative: None, float, is_redundant: is_redundant_or_beyond };

fn matrix(config: &ModelConfig, id: MatrixId) -> Vec<TensorSlice> {
    slice(config, id).into_iter().collect()
}

fn slice(config: &ModelConfig, id: MatrixId) -> Option<TensorSlice> {
    let Some(layer) = id.layer else {
        return match (id.kind, id.expert) {
            (MatrixKind::Embedding, None) => {
                Some(TensorSlice::whole("model.word_embeddings.weight"))
            }
            (MatrixKind::Head, None) => Some(TensorSlice::whole("lm_head.weight")),
            _ => None,
        };
    };
    let at = |part: &str| TensorSlice::whole(format!("model.layers.{layer}.{part}.weight"));
    if let (MatrixKind::Output, None) = (id.kind, id.expert) {
        return Some(at("attention.dense"));
    }
    if let Some(rows) = rows(config, layer, id.kind).filter(|_| id.expert.is_none()) {
        return Some(TensorSlice { rows, ..at("attention.query_key_value") });
    }
    deepseek::feed_forward(config, layer, id.kind, id.expert).map(|part| at(&part))
}

/// Returns the rows of queries, keys or values, which are stacked in this order.
fn rows(config: &ModelConfig, layer: u32, kind: MatrixKind) -> Option<Runs> {
    let mixer = &config.layers.get(usize::try_from(layer).ok()?)?.mixer;
    let TokenMixer::Attention(AttentionConfig {
        num_attention_heads,
        num_key_value_heads,
        head_dim,
        ..
    }) = mixer
    else {
        return None;
    };
    let [queries, keys] = [num_attention_heads, num_key_value_heads].map(|heads| heads * head_dim);
    Some(match kind {
        MatrixKind::Query => Runs::range(0, queries),
        MatrixKind::Key => Runs::range(queries, keys),
        MatrixKind::Value => Runs::range(queries + keys, keys),
        _ => return None,
    })
}

fn float(config: &ModelConfig, id: FloatId) -> Option<FloatSource> {
    let Some(layer) = id.layer else {
        return (id.kind == FloatKind::FinalNorm).then(|| FloatSource::kept("model.norm.weight"));
    };
    let at = |part: &str| FloatSource::kept(format!("model.layers.{layer}.{part}"));
    let of_rows = |kind| {
        let rows = Order::from(rows(config, layer, kind)?);
        Some(FloatSource { rows, ..at("attention.query_key_value.bias") })
    };
    Some(at(match id.kind {
        FloatKind::QueryBias => return of_rows(MatrixKind::Query),
        FloatKind::KeyBias => return of_rows(MatrixKind::Key),
        FloatKind::ValueBias => return of_rows(MatrixKind::Value),
        FloatKind::OutputBias => "attention.dense.bias",
        FloatKind::QueryNorm => "attention.query_layernorm.weight",
        FloatKind::KeyNorm => "attention.key_layernorm.weight",
        FloatKind::AttentionNorm => "input_layernorm.weight",
        FloatKind::FeedForwardNorm => "post_attention_layernorm.weight",
        FloatKind::Router => "mlp.gate.weight",
        FloatKind::RouterBias => "mlp.gate.expert_bias",
        _ => return None,
    }))
}
