//! Tensor names of Llama and Qwen, dense (`mlp.gate_proj`) and with experts (`mlp.experts.E.gate_proj`), and
//! of OLMoE: one tensor per projection. Also the names of the text parts of Qwen3-VL-MoE and Qwen3-Omni.

use super::{FloatSource, Naming, Runs, TensorSlice, attention_matrix, is_redundant, layer_float};
use crate::config::{FeedForward, LayerConfig, ModelConfig};
use nestling_formats::{FloatId, FloatKind, MatrixId, MatrixKind};

pub(super) const NAMING: Naming = Naming {
    matrix: |config, id| matrix(config, id, &ALONE),
    alternative: None,
    float: |_, id| float(id, &ALONE),
    is_redundant,
};

/// Names of Qwen3-VL-MoE: one tensor `[experts, inputs, outputs]` for all experts of a layer, gate before up.
pub(super) const WITH_IMAGES: Naming = Naming {
    matrix: |config, id| matrix(config, id, &Layout { experts: Experts::Turned, ..IMAGES }),
    alternative: None,
    float: |_, id| float(id, &IMAGES),
    is_redundant: |config, name| is_redundant(config, name) || name.starts_with("model.visual."),
};

/// Names of Qwen3-VL-MoE with tensors `[experts, outputs, inputs]`.
pub(super) const WITH_IMAGES_UPRIGHT: Naming =
    Naming { matrix: |config, id| matrix(config, id, &IMAGES), ..WITH_IMAGES };

/// Names of Qwen3-Omni.
pub(super) const WITH_SOUND: Naming = Naming {
    matrix: |config, id| matrix(config, id, &SOUND),
    alternative: None,
    float: |_, id| float(id, &SOUND),
    is_redundant: |config, name| {
        let others = ["talker.", "code2wav.", "thinker.audio_tower.", "thinker.visual."];
        is_redundant(config, name) || others.iter().any(|part| name.starts_with(part))
    },
};

/// Returns true if the fused expert tensors are `[experts, outputs, inputs]`. The check uses the tensor that
/// is not square.
pub(super) fn is_upright<'a>(
    config: &ModelConfig,
    shape: impl Fn(&str) -> Option<&'a [u64]>,
) -> bool {
    let width = |layer: &LayerConfig| match layer.feed_forward {
        FeedForward::Moe { moe_intermediate_size, .. } => Some(moe_intermediate_size),
        FeedForward::Absent | FeedForward::Dense { .. } => None,
    };
    let mixtures = config.layers.iter().enumerate();
    let mut mixtures = mixtures.filter_map(|(number, layer)| Some((number, width(layer)?)));
    // Default: a model without experts has no expert tensors.
    let Some((layer, width)) = mixtures.next() else { return false };
    let hidden = config.hidden_size;
    let (part, sizes) = match hidden == 2 * width {
        true => ("down_proj", [hidden, width]),
        false => ("gate_up_proj", [2 * width, hidden]),
    };
    let found = shape(&format!("{}layers.{layer}.mlp.experts.{part}", IMAGES.prefix));
    matches!(found, Some([_, sides @ ..]) if sides == sizes.map(|size| size as u64))
}

/// Tensor layout of a checkpoint.
struct Layout {
    prefix: &'static str,
    head: &'static str,
    experts: Experts,
}

/// Layout of the expert matrices.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Experts {
    /// Separate tensors.
    Apart,
    /// One tensor per layer, with gate rows above up rows.
    Fused,
    /// One tensor per layer, transposed.
    Turned,
}

const ALONE: Layout = Layout { prefix: "model.", head: "lm_head.weight", experts: Experts::Apart };

const IMAGES: Layout =
    Layout { prefix: "model.language_model.", head: "lm_head.weight", experts: Experts::Fused };

const SOUND: Layout =
    Layout { prefix: "thinker.model.", head: "thinker.lm_head.weight", experts: Experts::Apart };

fn matrix(config: &ModelConfig, id: MatrixId, layout: &Layout) -> Vec<TensorSlice> {
    let fused = fused_expert(config, id, layout);
    let slice = fused.or_else(|| name(config, id, layout).map(TensorSlice::whole));
    slice.into_iter().collect()
}

fn name(config: &ModelConfig, id: MatrixId, layout: &Layout) -> Option<String> {
    let Layout { prefix, head, .. } = layout;
    let Some(layer) = id.layer else {
        return match id {
            MatrixId { kind: MatrixKind::Embedding, expert: None, .. } => {
                Some(format!("{prefix}embed_tokens.weight"))
            }
            MatrixId { kind: MatrixKind::Head, expert: None, .. } => Some((*head).into()),
            _ => None,
        };
    };
    if let (Some(part), None) = (attention_matrix(id.kind), id.expert) {
        return Some(format!("{prefix}layers.{layer}.{part}"));
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
    Some(format!("{prefix}layers.{layer}.mlp.{owner}{part}.weight"))
}

fn fused_expert(config: &ModelConfig, id: MatrixId, layout: &Layout) -> Option<TensorSlice> {
    let (layer, expert) = (id.layer?, id.expert.filter(|_| layout.experts != Experts::Apart)?);
    let layer_config = config.layers.get(usize::try_from(layer).ok()?)?;
    let FeedForward::Moe { moe_intermediate_size: width, .. } = layer_config.feed_forward else {
        return None;
    };
    let (part, outputs) = match id.kind {
        MatrixKind::Gate => ("gate_up_proj", Runs::range(0, width)),
        MatrixKind::Up => ("gate_up_proj", Runs::range(width, width)),
        MatrixKind::Down => ("down_proj", Runs::ALL),
        _ => return None,
    };
    let whole = TensorSlice::whole(format!("{}layers.{layer}.mlp.experts.{part}", layout.prefix));
    let one = TensorSlice { index: Some(usize::try_from(expert).ok()?), ..whole };
    Some(match layout.experts {
        Experts::Turned => TensorSlice { columns: outputs.into(), transposed: true, ..one },
        Experts::Apart | Experts::Fused => TensorSlice { rows: outputs, ..one },
    })
}

fn float(id: FloatId, layout: &Layout) -> Option<FloatSource> {
    let prefix = layout.prefix;
    let Some(layer) = id.layer else {
        let name = format!("{prefix}norm.weight");
        return (id.kind == FloatKind::FinalNorm).then(|| FloatSource::kept(name));
    };
    let part = match id.kind {
        FloatKind::Router => "mlp.gate.weight",
        FloatKind::SharedGate => "mlp.shared_expert_gate.weight",
        kind => layer_float(kind)?,
    };
    Some(FloatSource::kept(format!("{prefix}layers.{layer}.{part}")))
}
