//! Qwen3: dense layers, norms per head.

use super::{Architecture, Family, QkNorm, keys, qwen2};

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::Qwen3,
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    keys: &["attention_bias", "sliding_window", "use_sliding_window"],
    read: |fields| {
        let mut attention = keys::attention(fields)?;
        attention.qk_norm = QkNorm::PerHead;
        attention.bias = keys::attention_bias(fields)?;
        qwen2::with_windows(fields, FAMILY.architecture, attention)
    },
};
