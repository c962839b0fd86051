//! Tensor names of DeepSeek-V2 and V3, which many families use. The up-projections of keys and values from
//! the latent are one tensor, interleaved by head.

use super::{FloatSource, Naming, Runs, TensorSlice, attention_matrix, float_with, table};
use super::{is_redundant, is_redundant_or_beyond};
use crate::config::{LatentConfig, ModelConfig, TokenMixer};
use nestling_formats::{FloatId, FloatKind, MatrixId, MatrixKind};

pub(super) const NAMING: Naming =
    Naming { matrix, alternative: None, float, is_redundant: is_redundant_or_beyond };

/// Names of ERNIE-4.5, with additional multi-token prediction parts.
pub(super) const ERNIE: Naming = Naming {
    float: |config, id| match id {
        FloatId { kind: FloatKind::RouterBias, layer: Some(layer) } => {
            let part = "mlp.moe_statics.e_score_correction_bias";
            Some(FloatSource::kept(format!("model.layers.{layer}.{part}")))
        }
        _ => float(config, id),
    },
    is_redundant: |config, name| {
        is_redundant_or_beyond(config, name) || name.starts_with("model.mtp_")
    },
    ..NAMING
};

/// Names of DeepSeek-V3.2 and GLM-5. The indexer selects all positions of the supported contexts.
pub(super) const SPARSE: Naming = Naming {
    is_redundant: |config, name| {
        is_redundant_or_beyond(config, name) || name.contains(".self_attn.indexer.")
    },
    ..NAMING
};

/// Names of K-EXAONE, with another name of the selection bias and a separate multi-token prediction part.
pub(super) const EXAONE: Naming = Naming {
    float: |config, id| match id {
        FloatId { kind: FloatKind::RouterBias, layer: Some(layer) } => {
            Some(FloatSource::kept(format!("model.layers.{layer}.mlp.e_score_correction_bias")))
        }
        _ => float(config, id),
    },
    is_redundant: |config, name| is_redundant(config, name) || name.starts_with("mtp."),
    ..NAMING
};

fn matrix(config: &ModelConfig, id: MatrixId) -> Vec<TensorSlice> {
    // Default: a matrix that the family does not have is in no tensor.
    slices(config, id).unwrap_or_default()
}

fn slices(config: &ModelConfig, id: MatrixId) -> Option<Vec<TensorSlice>> {
    if let Some(table) = table(id) {
        return Some(vec![TensorSlice::whole(table)]);
    }
    let layer = id.layer?;
    let at = |part: &str| format!("model.layers.{layer}.{part}.weight");
    let latent = match &config.layers.get(usize::try_from(layer).ok()?)?.mixer {
        TokenMixer::Latent(latent) => latent,
        TokenMixer::Attention(_) => {
            let part = attention_matrix(id.kind).filter(|_| id.expert.is_none());
            let name = part.map(|part| format!("model.layers.{layer}.{part}")).or_else(|| {
                feed_forward(config, layer, id.kind, id.expert).map(|part| at(&part))
            })?;
            return Some(vec![TensorSlice::whole(name)]);
        }
        TokenMixer::DeltaNet(_) | TokenMixer::ShortConv(_) | TokenMixer::Mamba2(_) => {
            return None;
        }
    };
    let part = match (id.kind, id.expert) {
        (MatrixKind::Query, None) => "self_attn.q_proj",
        (MatrixKind::QueryDown, None) => "self_attn.q_a_proj",
        (MatrixKind::QueryUp, None) => "self_attn.q_b_proj",
        (MatrixKind::LatentDown, None) => "self_attn.kv_a_proj_with_mqa",
        (MatrixKind::KeyUp, None) => return Some(key_up(latent, &at("self_attn.kv_b_proj"))),
        (MatrixKind::ValueUp, None) => return Some(value_up(latent, &at("self_attn.kv_b_proj"))),
        (MatrixKind::Output, None) => "self_attn.o_proj",
        (kind, expert) => {
            return feed_forward(config, layer, kind, expert)
                .map(|part| vec![TensorSlice::whole(at(&part))]);
        }
    };
    Some(vec![TensorSlice::whole(at(part))])
}

/// Returns the transposed key rows of each head.
pub(super) fn key_up(latent: &LatentConfig, name: &str) -> Vec<TensorSlice> {
    let LatentConfig { num_attention_heads, qk_nope_head_dim, v_head_dim, .. } = *latent;
    let head = |head: usize| TensorSlice {
        rows: Runs::range(head * (qk_nope_head_dim + v_head_dim), qk_nope_head_dim),
        transposed: true,
        ..TensorSlice::whole(name)
    };
    (0..num_attention_heads).map(head).collect()
}

/// Returns the value rows of each head, which follow its key rows.
pub(super) fn value_up(latent: &LatentConfig, name: &str) -> Vec<TensorSlice> {
    let LatentConfig { qk_nope_head_dim, v_head_dim, .. } = *latent;
    let stride = qk_nope_head_dim + v_head_dim;
    let rows = Runs { start: qk_nope_head_dim, length: v_head_dim, stride };
    vec![TensorSlice { rows, ..TensorSlice::whole(name) }]
}

/// Returns the name of a matrix of a dense part, a shared expert or a routed expert.
pub(super) fn feed_forward(
    config: &ModelConfig,
    layer: u32,
    kind: MatrixKind,
    expert: Option<u32>,
) -> Option<String> {
    let part = match kind {
        MatrixKind::Gate => "gate_proj",
        MatrixKind::Up => "up_proj",
        MatrixKind::Down => "down_proj",
        _ => return None,
    };
    Some(match expert {
        Some(expert) => format!("mlp.experts.{expert}.{part}"),
        None if config.is_mixture(layer) => format!("mlp.shared_experts.{part}"),
        None => format!("mlp.{part}"),
    })
}

fn float(_: &ModelConfig, id: FloatId) -> Option<FloatSource> {
    float_with(id, |kind| match kind {
        FloatKind::Router => Some("mlp.gate.weight"),
        FloatKind::RouterBias => Some("mlp.gate.e_score_correction_bias"),
        FloatKind::QueryLatentNorm => Some("self_attn.q_a_layernorm.weight"),
        FloatKind::LatentNorm => Some("self_attn.kv_a_layernorm.weight"),
        _ => None,
    })
}
