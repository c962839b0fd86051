//! Layers of Laguna: their kinds, RoPE settings and gates, which follow from the family and the tensors.

use serde_json::{Map, Value, json};

use super::GgufHeader;
use super::keys::Keys;
use super::laguna::DENSE;
use crate::ImportError;
use crate::limits::MAX_LAYERS;

const GATE: &str = "blk.0.attn_gate.weight";

/// Every layer of this number is without a window, from the first, unless a file says otherwise.
const FULL_EVERY: usize = 4;

impl Keys<'_> {
    /// Inserts the kinds of layers, their RoPE settings and the kind of gates.
    pub(super) fn laguna(
        &self,
        header: &GgufHeader,
        config: &mut Map<String, Value>,
    ) -> Result<(), ImportError> {
        let count = usize::try_from(self.layers()?).ok().filter(|count| *count <= MAX_LAYERS);
        let expected = format!("at most {MAX_LAYERS} layers");
        let count =
            count.ok_or_else(|| self.metadata.wrong(&self.name("block_count"), &expected))?;
        let wrong = || self.metadata.wrong(&self.name(DENSE), "at most the number of layers");
        let dense = self.unsigned(DENSE)?.and_then(|dense| usize::try_from(dense).ok());
        let dense = dense.filter(|dense| *dense <= count).ok_or_else(wrong)?;
        let is_dense = |layer| if layer < dense { "dense" } else { "sparse" };
        config.insert("mlp_layer_types".into(), (0..count).map(is_dense).collect());
        let has_windows = config.contains_key("sliding_window");
        if !has_windows || !config.contains_key("layer_types") {
            let is_full = |layer: usize| !has_windows || layer.is_multiple_of(FULL_EVERY);
            let kind = |layer| if is_full(layer) { "full_attention" } else { "sliding_attention" };
            config.insert("layer_types".into(), (0..count).map(kind).collect());
        }
        let full = full_rope(config);
        let local = self.local_rope(&full, config)?;
        let both = json!({ "full_attention": full, "sliding_attention": local });
        config.insert("rope_parameters".into(), both);
        let gates = header.tensors.iter().find(|tensor| tensor.name == GATE);
        let gates = gates.and_then(|tensor| tensor.shape.first()).copied();
        let is_per_head = gates == config.get("num_attention_heads").and_then(Value::as_u64);
        let gating = if is_per_head { "per-head" } else { "per-element" };
        config.insert("gating".into(), json!(gating));
        Ok(())
    }

    /// Returns the settings of layers with a window, which have no scaling.
    fn local_rope(
        &self,
        full: &Map<String, Value>,
        config: &Map<String, Value>,
    ) -> Result<Map<String, Value>, ImportError> {
        let mut local = full.clone();
        local.retain(|key, _| ["rope_theta", "partial_rotary_factor"].contains(&key.as_str()));
        if let Some(theta) = self.number("rope.freq_base_swa")? {
            local.insert("rope_theta".into(), json!(theta));
        }
        let head_dim = config.get("head_dim").and_then(Value::as_f64);
        if let (Some(dims), Some(head_dim)) = (self.number("rope.dimension_count_swa")?, head_dim) {
            local.insert("partial_rotary_factor".into(), json!(dims / head_dim));
        }
        Ok(local)
    }
}

/// Removes the settings of all layers, and returns them as those of layers without a window.
fn full_rope(config: &mut Map<String, Value>) -> Map<String, Value> {
    let mut full = Map::new();
    for key in ["rope_scaling", "rope_parameters"] {
        if let Some(Value::Object(settings)) = config.remove(key) {
            full.extend(settings);
        }
    }
    for key in ["rope_theta", "partial_rotary_factor"] {
        full.extend(config.remove(key).map(|value| (key.to_owned(), value)));
    }
    full
}
