//! Qwen2 and Qwen2.5: dense layers, biases of queries, keys and values.

use super::keys;
use super::{Architecture, AttentionBias, AttentionConfig, Family, ModelConfig, TokenMixer};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::MAX_LAYERS;

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::Qwen2,
    model_type: "qwen2",
    class: "Qwen2ForCausalLM",
    keys: &["sliding_window", "use_sliding_window"],
    read: |fields| {
        let mut attention = keys::attention(fields)?;
        attention.bias = AttentionBias::QueryKeyValue;
        with_windows(fields, FAMILY.architecture, attention)
    },
};

/// Reads a model of dense layers with sliding windows. If enabled, layers from `max_window_layers` on have
/// one.
pub(super) fn with_windows(
    fields: &Fields,
    architecture: Architecture,
    attention: AttentionConfig,
) -> Result<ModelConfig, ImportError> {
    let mut config = keys::dense_model(fields, architecture, attention)?;
    if fields.boolean("use_sliding_window")? != Some(true) {
        keys::full_attention(fields)?;
        return Ok(config);
    }
    // Default: unused, since the table of transformers' defaults has the key.
    let full = keys::count(fields, "max_window_layers", MAX_LAYERS)?.unwrap_or(MAX_LAYERS);
    let windows = keys::windows(fields, |layer| layer >= full)?;
    for (layer, sliding_window) in config.layers.iter_mut().zip(windows) {
        layer.mixer = TokenMixer::Attention(AttentionConfig { sliding_window, ..attention });
    }
    Ok(config)
}
