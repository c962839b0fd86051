//! Tensor names of Gemma 3 and 4. Gemma 4 has one tensor for all experts of a layer, with gate rows above up rows. A multimodal
//! checkpoint has the text part under `language_model`.

use super::{FloatChange, FloatSource, Naming, Runs, TensorSlice, attention_matrix};
use crate::config::{Architecture, FeedForward, ModelConfig};
use nestling_formats::{FloatId, FloatKind, MatrixId, MatrixKind};

pub(super) const NAMING: Naming = Naming { matrix, alternative: None, float, is_redundant };

fn prefix(config: &ModelConfig) -> &'static str {
    match config.architecture {
        Architecture::Gemma3Text | Architecture::Gemma4Text => "model",
        _ => "model.language_model",
    }
}

/// Name prefixes of the image and audio parts.
const OTHER_PARTS: [&str; 4] =
    ["model.vision_tower.", "model.embed_vision.", "model.audio_tower.", "model.embed_audio."];

fn matrix(config: &ModelConfig, id: MatrixId) -> Vec<TensorSlice> {
    slice(config, id).into_iter().collect()
}

fn slice(config: &ModelConfig, id: MatrixId) -> Option<TensorSlice> {
    let prefix = prefix(config);
    let Some(layer) = id.layer else {
        let embedding = format!("{prefix}.embed_tokens.weight");
        return match id.kind {
            MatrixKind::Embedding => Some(TensorSlice::whole(embedding)),
            MatrixKind::Head => Some(TensorSlice::whole("lm_head.weight")),
            _ => None,
        };
    };
    let Some(expert) = id.expert else {
        let part = attention_matrix(id.kind).or(match id.kind {
            MatrixKind::Gate => Some("mlp.gate_proj.weight"),
            MatrixKind::Up => Some("mlp.up_proj.weight"),
            MatrixKind::Down => Some("mlp.down_proj.weight"),
            _ => None,
        })?;
        return Some(TensorSlice::whole(format!("{prefix}.layers.{layer}.{part}")));
    };
    let layer_config = config.layers.get(usize::try_from(layer).ok()?)?;
    let FeedForward::Moe { moe_intermediate_size: width, .. } = layer_config.feed_forward else {
        return None;
    };
    let (part, rows) = match id.kind {
        MatrixKind::Gate => ("gate_up_proj", Runs::range(0, width)),
        MatrixKind::Up => ("gate_up_proj", Runs::range(width, width)),
        MatrixKind::Down => ("down_proj", Runs::ALL),
        _ => return None,
    };
    let name = format!("{prefix}.layers.{layer}.experts.{part}");
    let index = Some(usize::try_from(expert).ok()?);
    Some(TensorSlice { index, rows, ..TensorSlice::whole(name) })
}

fn float(config: &ModelConfig, id: FloatId) -> Option<FloatSource> {
    let prefix = prefix(config);
    let Some(layer) = id.layer else {
        let name = format!("{prefix}.norm.weight");
        return (id.kind == FloatKind::FinalNorm).then(|| source(config, name));
    };
    let part = match id.kind {
        FloatKind::AttentionNorm => "input_layernorm.weight",
        FloatKind::PostAttentionNorm => "post_attention_layernorm.weight",
        FloatKind::FeedForwardNorm => "pre_feedforward_layernorm.weight",
        FloatKind::PostFeedForwardNorm => "post_feedforward_layernorm.weight",
        FloatKind::PostSharedNorm => "post_feedforward_layernorm_1.weight",
        FloatKind::PreExpertNorm => "pre_feedforward_layernorm_2.weight",
        FloatKind::PostExpertNorm => "post_feedforward_layernorm_2.weight",
        FloatKind::QueryNorm => "self_attn.q_norm.weight",
        FloatKind::KeyNorm => "self_attn.k_norm.weight",
        FloatKind::Router => "router.proj.weight",
        FloatKind::RouterInputScale => "router.scale",
        FloatKind::ExpertScale => "router.per_expert_scale",
        FloatKind::LayerScalar => "layer_scalar",
        _ => return None,
    };
    Some(source(config, format!("{prefix}.layers.{layer}.{part}")))
}

/// Returns a float tensor. All floats of Gemma 3 are norms, with weights stored relative to 1.
fn source(config: &ModelConfig, name: String) -> FloatSource {
    let change = match config.architecture {
        Architecture::Gemma3Text => FloatChange::PlusOne,
        _ => FloatChange::Kept,
    };
    FloatSource { change, ..FloatSource::kept(name) }
}

/// Returns true for tensors that may be ignored, including the image and audio towers, which are not
/// supported.
fn is_redundant(config: &ModelConfig, name: &str) -> bool {
    super::is_redundant(config, name) || OTHER_PARTS.iter().any(|part| name.starts_with(part))
}
