//! Tensor names of Nemotron-H and Nemotron-3: `backbone.layers` are blocks of one part, each called `mixer`.

use super::{FloatChange, FloatSource, Naming, TensorSlice};
use crate::config::{Architecture, FeedForward, ModelConfig};
use nestling_formats::{FloatId, FloatKind, MatrixId, MatrixKind};

pub(super) const NAMING: Naming = Naming { matrix, alternative: None, float, is_redundant };

/// Returns the number of blocks of the first `layers` layers. In other families each layer is a block.
pub(super) fn blocks(config: &ModelConfig, layers: usize) -> usize {
    let first = config.layers.iter().take(layers);
    let pairs = first.filter(|layer| layer.feed_forward != FeedForward::Absent).count();
    if config.architecture == Architecture::NemotronH { layers + pairs } else { layers }
}

/// Returns the block of a layer's feed-forward part, or of its mixer.
pub(super) fn block(config: &ModelConfig, layer: u32, is_feed_forward: bool) -> Option<usize> {
    let of_mixer = blocks(config, usize::try_from(layer).ok()?);
    let is_apart = is_feed_forward && config.architecture == Architecture::NemotronH;
    Some(of_mixer + usize::from(is_apart))
}

/// Returns true for matrices of feed-forward parts.
pub(super) fn is_of_feed_forward(kind: MatrixKind) -> bool {
    matches!(kind, MatrixKind::Gate | MatrixKind::Up | MatrixKind::Down)
}

/// Returns true for floats of feed-forward parts.
pub(super) fn is_float_of_feed_forward(kind: FloatKind) -> bool {
    matches!(kind, FloatKind::FeedForwardNorm | FloatKind::Router | FloatKind::RouterBias)
}

fn matrix(config: &ModelConfig, id: MatrixId) -> Vec<TensorSlice> {
    name(config, id).map(TensorSlice::whole).into_iter().collect()
}

fn name(config: &ModelConfig, id: MatrixId) -> Option<String> {
    let Some(layer) = id.layer else {
        return match id.kind {
            MatrixKind::Embedding => Some("backbone.embeddings.weight".into()),
            MatrixKind::Head => Some("lm_head.weight".into()),
            _ => None,
        };
    };
    let is_feed_forward = is_of_feed_forward(id.kind);
    let part = match id.kind {
        MatrixKind::Query => "q_proj",
        MatrixKind::Key => "k_proj",
        MatrixKind::Value => "v_proj",
        MatrixKind::Output => "o_proj",
        MatrixKind::Mamba2In => "in_proj",
        MatrixKind::Mamba2Out => "out_proj",
        MatrixKind::Up => "up_proj",
        MatrixKind::Down => "down_proj",
        _ => return None,
    };
    let owner = match id.expert {
        Some(expert) => format!("experts.{expert}."),
        None if is_feed_forward && config.is_mixture(layer) => "shared_experts.".into(),
        None => String::new(),
    };
    let block = block(config, layer, is_feed_forward)?;
    Some(format!("backbone.layers.{block}.mixer.{owner}{part}.weight"))
}

fn float(config: &ModelConfig, id: FloatId) -> Option<FloatSource> {
    let Some(layer) = id.layer else {
        let is_norm = id.kind == FloatKind::FinalNorm;
        return is_norm.then(|| FloatSource::kept("backbone.norm_f.weight"));
    };
    let part = match id.kind {
        FloatKind::AttentionNorm | FloatKind::FeedForwardNorm => "norm.weight",
        FloatKind::Router => "mixer.gate.weight",
        FloatKind::RouterBias => "mixer.gate.e_score_correction_bias",
        FloatKind::Mamba2Conv => "mixer.conv1d.weight",
        FloatKind::Mamba2ConvBias => "mixer.conv1d.bias",
        FloatKind::Mamba2InBias => "mixer.in_proj.bias",
        FloatKind::Mamba2OutBias => "mixer.out_proj.bias",
        FloatKind::Mamba2Decay => "mixer.A_log",
        FloatKind::Mamba2TimeBias => "mixer.dt_bias",
        FloatKind::Mamba2Skip => "mixer.D",
        FloatKind::Mamba2Norm => "mixer.norm.weight",
        _ => return None,
    };
    let change = match id.kind {
        FloatKind::Mamba2Decay => FloatChange::NegativeExp,
        _ => FloatChange::Kept,
    };
    let block = block(config, layer, is_float_of_feed_forward(id.kind))?;
    let name = format!("backbone.layers.{block}.{part}");
    Some(FloatSource { change, ..FloatSource::kept(name) })
}

/// Returns true for a stored copy of a tied head, and for draft layers.
fn is_redundant(config: &ModelConfig, name: &str) -> bool {
    super::is_redundant(config, name) || name.starts_with("mtp.")
}
