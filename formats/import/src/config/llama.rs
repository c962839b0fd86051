//! Llama and Mistral: dense layers, attention without norms of heads.

use super::keys;
use super::{Architecture, Family, ModelConfig};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{MAX_POSITIONS, MAX_WIDTH};

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::Llama,
    model_type: "llama",
    class: "LlamaForCausalLM",
    keys: &["attention_bias", "is_llama_config", "mlp_bias", "pretraining_tp", "rope_interleaved"],
    read,
};

/// Mistral, with a sliding window in all layers or none.
pub(super) const MISTRAL_FAMILY: Family = Family {
    architecture: Architecture::Mistral,
    model_type: "mistral",
    class: "MistralForCausalLM",
    keys: &["sliding_window"],
    read: |fields| {
        keys::full_attention(fields)?;
        let mut attention = keys::attention(fields)?;
        attention.sliding_window = fields.size("sliding_window", MAX_POSITIONS)?;
        keys::dense_model(fields, MISTRAL_FAMILY.architecture, attention)
    },
};

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    keys::full_attention(fields)?;
    // Keys of SmolLM2's files, which transformers ignores, are accepted with the values that Llama implies.
    for (key, implied) in
        [("mlp_bias", false), ("rope_interleaved", false), ("is_llama_config", true)]
    {
        if fields.boolean(key)?.is_some_and(|found| found != implied) {
            return Err(fields.unsupported(key, &format!("supported: {implied}")));
        }
    }
    let mut attention = keys::attention(fields)?;
    // transformers requires it even if `head_dim` is given.
    let (hidden, heads) =
        (fields.required_size("hidden_size", MAX_WIDTH)?, attention.num_attention_heads);
    if !hidden.is_multiple_of(heads) {
        let expected = format!("a divisor of `hidden_size` = {hidden}");
        return Err(fields.wrong("num_attention_heads", expected));
    }
    attention.bias = keys::attention_bias(fields)?;
    keys::dense_model(fields, FAMILY.architecture, attention)
}
