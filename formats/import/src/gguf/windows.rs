//! Configuration of models with two kinds of layers (Gemma 3 and 4). Sliding-window layers and global layers have
//! separate RoPE settings and heads.

use serde_json::{Map, Value, json};

use super::GgufHeader;
use super::key::PATTERN;
use super::keys::Keys;
use crate::ImportError;

/// Fraction of a head's pairs that are rotated in global layers. Files encode it as frequency factors in a
/// tensor, which are compared with this value when weights are read.
const GLOBAL_PART: f64 = 0.25;

/// Number of layers of Gemma 3 27B, whose attention has another scale. Files do not record the scale.
const LAYERS_OF_27B: u64 = 62;

impl Keys<'_> {
    /// Returns the values of a key for sliding-window layers and for the others. A single value applies to
    /// both.
    pub(super) fn by_window(&self, key: &str) -> Result<[Option<f64>; 2], ImportError> {
        let name = self.name(key);
        if !self.metadata.is_array(&name) {
            return Ok([self.number(key)?; 2]);
        }
        let wrong = || self.metadata.wrong(&name, "one value for all layers of a kind");
        // Default: absent lists count as too short, which is rejected below.
        let values = self.metadata.numbers(&name)?.unwrap_or_default();
        // Default: as above.
        let windowed = self.metadata.numbers(&self.name(PATTERN))?.unwrap_or_default();
        let layers = usize::try_from(self.layers()?).unwrap_or(usize::MAX);
        if values.len() < layers || windowed.len() < layers {
            return Err(wrong());
        }
        let mut found = [None; 2];
        for (value, windowed) in values.into_iter().zip(windowed).take(layers) {
            let of_kind = &mut found[usize::from(windowed == 0.0)];
            if of_kind.replace(value).is_some_and(|before| before != value) {
                return Err(wrong());
            }
        }
        Ok(found)
    }

    /// Inserts the configuration of Gemma 3 that its files lack, as llama.cpp does.
    pub(super) fn gemma3(&self, config: &mut Map<String, Value>) -> Result<(), ImportError> {
        // The settings of all layers are under separate keys instead.
        config.remove("rope_parameters");
        // Default: the base of layers with a window in all published models.
        let local = self.number("rope.freq_base_swa")?.unwrap_or(10_000.0);
        config.insert("rope_local_base_freq".into(), json!(local));
        let size = |ours: &str| config.get(ours).and_then(Value::as_u64);
        let of_heads = || size("hidden_size")?.checked_div(size("num_attention_heads")?);
        let scale = if self.layers()? == LAYERS_OF_27B { of_heads() } else { size("head_dim") };
        if let Some(scale) = scale {
            config.insert("query_pre_attn_scalar".into(), json!(scale));
        }
        Ok(())
    }

    /// Inserts the remaining configuration of such a model.
    pub(super) fn windows(
        &self,
        header: &GgufHeader,
        config: &mut Map<String, Value>,
    ) -> Result<(), ImportError> {
        let size = |ours: &str| config.get(ours).and_then(Value::as_u64);
        let kinds = [
            ("sliding_attention", "head_dim", "_swa", 1.0),
            ("full_attention", "global_head_dim", "", GLOBAL_PART),
        ];
        let mut positions = Map::new();
        for (kind, head_dim, ending, part) in kinds {
            let base = format!("rope.freq_base{ending}");
            let theta = self.number(&base)?;
            let theta = theta.ok_or_else(|| self.metadata.wrong(&self.name(&base), "a number"))?;
            for same in ["rope.dimension_count", "attention.value_length"] {
                let same = format!("{same}{ending}");
                if self.unsigned(&same)?.is_some_and(|found| size(head_dim) != Some(found)) {
                    return Err(self
                        .metadata
                        .wrong(&self.name(&same), "the size of a head's keys"));
                }
            }
            let rope_type = if part < 1.0 { "proportional" } else { "default" };
            let rope = json!({
                "rope_theta": theta, "rope_type": rope_type, "partial_rotary_factor": part,
            });
            positions.insert(kind.into(), rope);
        }
        config.insert("rope_parameters".into(), Value::Object(positions));
        // The last layer is global.
        let values = self.layers()?.checked_sub(1).map(|last| format!("blk.{last}.attn_v.weight"));
        let has_values = header.tensors.iter().any(|tensor| Some(&tensor.name) == values.as_ref());
        config.insert("attention_k_eq_v".into(), json!(!has_values));
        Ok(())
    }
}
