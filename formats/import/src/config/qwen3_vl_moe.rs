//! Qwen3-VL-MoE and Qwen3-Omni, multimodal models whose text part is a Qwen3-MoE.

use super::qwen3_moe::{KEYS, read_text};
use super::{Architecture, Family, ModelConfig, defaults, keys};
use crate::ImportError;
use crate::json::Fields;

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::Qwen3VlMoe,
    model_type: "qwen3_vl_moe",
    class: "Qwen3VLMoeForConditionalGeneration",
    keys: &[
        "image_token_id",
        "text_config",
        "video_token_id",
        "vision_config",
        "vision_end_token_id",
        "vision_start_token_id",
    ],
    read: |fields| {
        let text = keys::text_part(fields, "qwen3_vl_moe_text", KEYS)?;
        // The code ignores the key.
        let norm_topk_prob = true;
        let mut config = read_text(&text, Architecture::Qwen3VlMoe, norm_topk_prob, None)?;
        config.tie_word_embeddings = keys::tied(fields, &text)?;
        Ok(config)
    },
};

/// The thinker of Qwen3-Omni. The talker is a separate model.
pub(super) const OMNI_FAMILY: Family = Family {
    architecture: Architecture::Qwen3OmniMoe,
    model_type: "qwen3_omni_moe",
    class: "Qwen3OmniMoeForConditionalGeneration",
    keys: &[
        "assistant_token_id",
        "code2wav_config",
        "enable_audio_output",
        "im_end_token_id",
        "im_start_token_id",
        "system_token_id",
        "talker_config",
        "thinker_config",
        "tts_bos_token_id",
        "tts_eos_token_id",
        "tts_pad_token_id",
        "user_token_id",
    ],
    read: read_omni,
};

/// Keys of the thinker outside its text part.
const THINKER_KEYS: &[&str] = &[
    "audio_config",
    "audio_end_token_id",
    "audio_start_token_id",
    "audio_token_id",
    "image_token_id",
    "position_id_per_seconds",
    "seconds_per_chunk",
    "text_config",
    "user_token_id",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_start_token_id",
];

fn read_omni(fields: &Fields) -> Result<ModelConfig, ImportError> {
    let thinker = fields.object("thinker_config")?;
    let thinker = thinker.ok_or_else(|| fields.wrong("thinker_config", "an object"))?;
    let thinker = defaults::complete(thinker, "qwen3_omni_moe_thinker")?;
    keys::refuse_unknown(&thinker, THINKER_KEYS)?;
    let text = keys::text_part(&thinker, "qwen3_omni_moe_text", KEYS)?;
    let norm_topk_prob = text.boolean("norm_topk_prob")?.unwrap_or(false);
    let window = None;
    let mut config = read_text(&text, Architecture::Qwen3OmniMoe, norm_topk_prob, window)?;
    config.tie_word_embeddings = keys::tied(&thinker, &text)?;
    Ok(config)
}
