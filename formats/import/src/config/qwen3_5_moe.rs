//! Qwen3.5-MoE and Qwen3.6-MoE, multimodal models whose text part is read.

use super::qwen3_next::{TEXT_KEYS, read_text};
use super::{Architecture, Family, ModelConfig, keys};
use crate::ImportError;
use crate::json::Fields;

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::Qwen35Moe,
    model_type: "qwen3_5_moe",
    class: "Qwen3_5MoeForConditionalGeneration",
    keys: &[
        "image_token_id",
        "text_config",
        "video_token_id",
        "vision_config",
        "vision_end_token_id",
        "vision_start_token_id",
    ],
    read,
};

/// The text part in a separate checkpoint, with a configuration that is not nested.
pub(super) const TEXT_FAMILY: Family = Family {
    architecture: Architecture::Qwen35MoeText,
    model_type: "qwen3_5_moe_text",
    class: "Qwen3_5MoeForCausalLM",
    keys: TEXT_KEYS,
    read: |fields| read_text(fields, Architecture::Qwen35MoeText),
};

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    let text = keys::text_part(fields, TEXT_FAMILY.model_type, TEXT_KEYS)?;
    let mut config = read_text(&text, FAMILY.architecture)?;
    config.tie_word_embeddings = keys::tied(fields, &text)?;
    Ok(config)
}
