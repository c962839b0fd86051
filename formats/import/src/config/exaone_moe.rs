//! K-EXAONE: DeepSeek-V3's experts beside attention with norms of heads. Layers with a sliding window rotate,
//! the others have no RoPE. The multi-token prediction part is ignored.

use serde_json::Value;

use super::keys::{self, Parts};
use super::{
    Architecture, AttentionConfig, Family, GroupScore, LayerConfig, ModelConfig, Multipliers,
    QkNorm, RopeConfig, TokenMixer, routed,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{MAX_LAYERS, MAX_POSITIONS};

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::ExaoneMoe,
    model_type: "exaone_moe",
    class: "ExaoneMoeForCausalLM",
    keys: &[
        "first_k_dense_replace",
        "first_last_k_dense_replace",
        "is_moe_layer",
        "mlp_layer_types",
        "moe_intermediate_size",
        "n_group",
        "norm_topk_prob",
        "num_experts",
        "num_nextn_predict_layers",
        "num_shared_experts",
        "routed_scaling_factor",
        "scoring_func",
        "sliding_window",
        "sliding_window_pattern",
        "topk_group",
        "topk_method",
    ],
    read,
};

const NAMES: routed::Names = routed::Names { experts: "num_experts", shared: "num_shared_experts" };

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    let mut attention = keys::attention(fields)?;
    attention.qk_norm = QkNorm::PerHead;
    let dense = routed::dense_by_layer(fields)?;
    refuse_other_layers(fields, &dense)?;
    let layer = |(window, is_dense): (Option<usize>, bool)| {
        let rope = if window.is_some() { attention.rope } else { RopeConfig::NONE };
        let attention = AttentionConfig { sliding_window: window, rope, ..attention };
        let feed_forward = match is_dense {
            true => keys::dense(fields)?,
            false => routed::mixture_of(fields, &NAMES)?,
        };
        Ok(LayerConfig { mixer: TokenMixer::Attention(attention), feed_forward })
    };
    let layers = windows(fields)?.into_iter().zip(dense).map(layer);
    let layers = layers.collect::<Result<Vec<_>, ImportError>>()?;
    let groups = routed::groups_of(fields, GroupScore::TwoBest, &NAMES)?;
    let router = Some(routed::sigmoid_router_of(fields, groups)?);
    let multipliers = Multipliers::NONE;
    keys::model(fields, Parts { architecture: FAMILY.architecture, layers, router, multipliers })
}

/// Returns the windows from `layer_types`, or else all but the last layer of each `sliding_window_pattern`.
/// Published files have the pattern as a text beside `layer_types`; transformers reads a text there only.
fn windows(fields: &Fields) -> Result<Vec<Option<usize>>, ImportError> {
    const PATTERN: &str = "sliding_window_pattern";
    const WINDOW: &str = "sliding_window";
    // Without a window, transformers would rotate all layers.
    if fields.size(WINDOW, MAX_POSITIONS)?.is_none() {
        return Err(fields.wrong(WINDOW, "a number of positions"));
    }
    if fields.get("layer_types").is_some() {
        return keys::windows(fields, |_| false);
    }
    let every = fields.required_size(PATTERN, MAX_LAYERS)?;
    keys::windows(fields, |layer| !(layer + 1).is_multiple_of(every))
}

/// Rejects older keys for the dense layers, which transformers does not read, if they contradict those that it
/// reads.
fn refuse_other_layers(fields: &Fields, dense: &[bool]) -> Result<(), ImportError> {
    const MIXTURES: &str = "is_moe_layer";
    const COUNT: &str = "first_last_k_dense_replace";
    let expected: Vec<Value> = dense.iter().map(|dense| Value::Bool(!dense)).collect();
    let found = fields.get(MIXTURES).filter(|found| found.as_array() != Some(&expected));
    if found.is_some() {
        let expected = "the layers that `first_k_dense_replace` or `mlp_layer_types` gives";
        return Err(fields.wrong(MIXTURES, expected));
    }
    let count = dense.iter().take_while(|dense| **dense).count();
    match keys::count(fields, COUNT, MAX_LAYERS)? {
        Some(found) if found != count => {
            let supported = format!("supported: {count}, the number of dense layers at the start");
            Err(fields.unsupported(COUNT, &supported))
        }
        _ => Ok(()),
    }
}
