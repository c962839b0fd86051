//! Gemma 4's mixture (26B-A4B): a multimodal configuration whose `text_config` is read. Layers that
//! see a window alternate with layers that see everything and have heads of another shape.

use serde_json::Value;

use super::keys::{self, Parts};
use super::rope::checked_theta;
use super::{
    Activation, Architecture, AttentionConfig, BlockNorms, ExpertVector, Family, FeedForward,
    LayerConfig, ModelConfig, Multipliers, QkNorm, RopeConfig, RopeScaling, RouterConfig,
    RouterInput, SharedExpert, SharedGate, TokenMixer, ValueNorm, ValueSource,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{
    MAX_EOS_TOKENS, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH,
};

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::Gemma4,
    model_type: "gemma4",
    class: "Gemma4ForConditionalGeneration",
    keys: &[
        "audio_config",
        "audio_token_id",
        "boa_token_id",
        "boi_token_id",
        "eoa_token_id",
        "eoa_token_index",
        "eoi_token_id",
        "image_token_id",
        "text_config",
        "video_token_id",
        "vision_config",
        "vision_soft_tokens_per_image",
    ],
    read,
};

/// A checkpoint of the text part alone: its configuration is not within another.
pub(super) const TEXT_FAMILY: Family = Family {
    architecture: Architecture::Gemma4Text,
    model_type: "gemma4_text",
    class: "Gemma4ForCausalLM",
    keys: TEXT_KEYS,
    read: |fields| read_text(fields, Architecture::Gemma4Text),
};

/// Keys of `text_config` beside the common ones.
const TEXT_KEYS: &[&str] = &[
    "attention_bias",
    "attention_k_eq_v",
    "enable_moe_block",
    "final_logit_softcapping",
    "global_head_dim",
    "hidden_activation",
    "hidden_size_per_layer_input",
    "moe_intermediate_size",
    "num_experts",
    "num_global_key_value_heads",
    "num_kv_shared_layers",
    "per_layer_config",
    "top_k_experts",
    "use_bidirectional_attention",
    "use_double_wide_mlp",
    "vocab_size_per_layer_input",
];

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    let Some(text) = fields.object("text_config")? else {
        return Err(fields.wrong("text_config", "an object"));
    };
    keys::refuse_unsupported(&text, TEXT_KEYS)?;
    keys::refuse_unknown(&text, TEXT_KEYS)?;
    let mut config = read_text(&text, FAMILY.architecture)?;
    let ends = fields.numbers("eos_token_id", MAX_EOS_TOKENS)?;
    if !ends.is_empty() {
        keys::check_tokens(fields, "eos_token_id", &ends, config.vocab_size)?;
        config.eos_token_ids = ends;
    }
    Ok(config)
}

/// The model that the keys of its text part describe.
fn read_text(text: &Fields, architecture: Architecture) -> Result<ModelConfig, ImportError> {
    refuse_unsupported(text)?;
    let hidden_size = text.required_size("hidden_size", MAX_WIDTH)?;
    let layers = layers(text)?;
    check_restated(text, &layers)?;
    let parts = Parts {
        architecture,
        layers,
        router: RouterConfig {
            input: RouterInput::Own,
            expert_scale: ExpertVector::Present,
            ..RouterConfig::softmax(true)
        },
        multipliers: Multipliers { embedding: (hidden_size as f32).sqrt(), ..Multipliers::NONE },
    };
    let mut config = keys::model(text, parts)?;
    config.activation = Activation::GeluTanh;
    config.block_norms = BlockNorms::Around;
    config.final_logit_softcapping = softcap(text)?;
    config.tie_word_embeddings = text.boolean("tie_word_embeddings")?.unwrap_or(true);
    Ok(config)
}

/// Newer versions of transformers write the heads of global layers a second time, by number.
fn check_restated(text: &Fields, layers: &[LayerConfig]) -> Result<(), ImportError> {
    const KEY: &str = "per_layer_config";
    let Some(restated) = text.object(KEY)? else { return Ok(()) };
    for (layer, own) in restated.members() {
        let found = layer.parse().ok().and_then(|layer: usize| layers.get(layer));
        let (Some(LayerConfig { mixer: TokenMixer::Attention(heads), .. }), Value::Object(own)) =
            (found, own)
        else {
            return Err(text.wrong(KEY, "an object of layers with their heads"));
        };
        for (key, value) in own {
            let expected = match key.as_str() {
                "head_dim" => heads.head_dim,
                "num_key_value_heads" => heads.num_key_value_heads,
                _ => return Err(keys::unknown(text.file(), key, value)),
            };
            if value.as_u64() != u64::try_from(expected).ok() {
                return Err(text.wrong(KEY, format!("{expected} as `{key}` of layer {layer}")));
            }
        }
    }
    Ok(())
}

/// Refuses what the other sizes of the family have.
fn refuse_unsupported(text: &Fields) -> Result<(), ImportError> {
    if text.boolean("enable_moe_block")? != Some(true) {
        return Err(text.unsupported("enable_moe_block", "supported: true (26B-A4B)"));
    }
    for key in ["hidden_size_per_layer_input", "num_kv_shared_layers"] {
        if !matches!(text.number(key)?, None | Some(0.0)) {
            return Err(text.unsupported(key, "supported: 0"));
        }
    }
    for key in ["attention_bias", "use_double_wide_mlp"] {
        if text.boolean(key)? == Some(true) {
            return Err(text.unsupported(key, "supported: false"));
        }
    }
    if !matches!(text.text("hidden_activation")?, None | Some("gelu_pytorch_tanh")) {
        return Err(text.unsupported("hidden_activation", "supported: gelu_pytorch_tanh"));
    }
    // Tokens of images alone see what comes after them.
    if !matches!(text.text("use_bidirectional_attention")?, None | Some("vision")) {
        return Err(text.unsupported("use_bidirectional_attention", "supported: vision"));
    }
    Ok(())
}

fn layers(text: &Fields) -> Result<Vec<LayerConfig>, ImportError> {
    let feed_forward = feed_forward(text)?;
    let (local, global) = (local(text)?, global(text)?);
    let count = text.required_size("num_hidden_layers", MAX_LAYERS)?;
    let expected = "`num_hidden_layers` of sliding_attention and full_attention, the last one full";
    let Some(Value::Array(kinds)) = text.get("layer_types") else {
        return Err(text.wrong("layer_types", expected));
    };
    if kinds.len() != count || kinds.last().is_none_or(|last| last != "full_attention") {
        return Err(text.wrong("layer_types", expected));
    }
    let layer = |kind: &Value| {
        let attention = match kind.as_str() {
            Some("sliding_attention") => local,
            Some("full_attention") => global,
            _ => return Err(text.wrong("layer_types", expected)),
        };
        Ok(LayerConfig { mixer: TokenMixer::Attention(attention), feed_forward })
    };
    kinds.iter().map(layer).collect()
}

/// Experts beside a dense part.
fn feed_forward(text: &Fields) -> Result<FeedForward, ImportError> {
    let intermediate_size = text.required_size("intermediate_size", MAX_WIDTH)?;
    let shared = SharedExpert { intermediate_size, gate: SharedGate::Open };
    let counts = ("num_experts", "top_k_experts");
    keys::mixture_of(text, counts, "moe_intermediate_size", Some(shared))
}

/// Attention within a window.
fn local(text: &Fields) -> Result<AttentionConfig, ImportError> {
    let rope =
        |text: &Fields, head_dim| Ok(Rope::read(text, "sliding_attention", 1.0)?.config(head_dim));
    Ok(AttentionConfig {
        scale: 1.0,
        qk_norm: QkNorm::PerHead,
        value_norm: ValueNorm::PerHead,
        sliding_window: Some(text.required_size("sliding_window", MAX_POSITIONS)?),
        ..keys::attention_with(text, rope)?
    })
}

/// Attention over all positions: other heads, and values that are keys.
fn global(text: &Fields) -> Result<AttentionConfig, ImportError> {
    let local = local(text)?;
    let head_dim = text.size("global_head_dim", MAX_HEAD_DIM)?.unwrap_or(512);
    if !head_dim.is_multiple_of(2) {
        return Err(text.wrong("global_head_dim", "an even number"));
    }
    let values = match text.boolean("attention_k_eq_v")? {
        Some(true) => ValueSource::Keys,
        _ => ValueSource::Projection,
    };
    let own_heads = match values {
        ValueSource::Keys => text.size("num_global_key_value_heads", MAX_HEADS)?,
        ValueSource::Projection => None,
    };
    let num_key_value_heads = own_heads.unwrap_or(local.num_key_value_heads);
    if !local.num_attention_heads.is_multiple_of(num_key_value_heads) {
        let expected =
            format!("a divisor of `num_attention_heads` = {}", local.num_attention_heads);
        return Err(text.wrong("num_global_key_value_heads", expected));
    }
    let rope = Rope::read(text, "full_attention", 0.25)?.config(head_dim);
    let sliding_window = None;
    Ok(AttentionConfig { num_key_value_heads, head_dim, rope, values, sliding_window, ..local })
}

/// What is said of the positions of one kind of layer.
struct Rope {
    theta: f64,
    /// Share of a head's pairs that turn.
    part: f64,
}

impl Rope {
    fn read(text: &Fields, kind: &str, default_part: f64) -> Result<Self, ImportError> {
        let all = text.object("rope_parameters")?;
        let Some(fields) = all.map(|all| all.object(kind)).transpose()?.flatten() else {
            let theta = if default_part < 1.0 { 1e6 } else { 1e4 };
            return Ok(Self { theta, part: default_part });
        };
        let known = ["rope_type", "rope_theta", "partial_rotary_factor"];
        if let Some((key, value)) = fields.members().find(|(key, _)| !known.contains(key)) {
            return Err(keys::unknown(fields.file(), key, value));
        }
        let part = fields.number("partial_rotary_factor")?.unwrap_or(1.0);
        match fields.text("rope_type")? {
            None | Some("proportional") => {}
            Some("default") if part == 1.0 => {}
            Some("default") => {
                let supported = "supported: 1.0, or rope_type proportional";
                return Err(fields.unsupported("partial_rotary_factor", supported));
            }
            Some(_) => return Err(fields.unsupported("rope_type", "supported: proportional")),
        }
        if !(0.0..=1.0).contains(&part) {
            return Err(fields.wrong("partial_rotary_factor", "a number from 0 to 1"));
        }
        let theta = checked_theta(&fields, fields.number("rope_theta")?)?;
        Ok(Self { theta, part })
    }

    fn config(&self, head_dim: usize) -> RopeConfig {
        let pairs = (self.part * head_dim as f64 / 2.0).floor() as usize;
        let scaling = match pairs {
            all if all == head_dim / 2 => RopeScaling::None,
            pairs => RopeScaling::Proportional { pairs },
        };
        RopeConfig { theta: self.theta, dims: head_dim, scaling }
    }
}

/// What logits are kept within.
fn softcap(text: &Fields) -> Result<Option<f32>, ImportError> {
    let Some(cap) = text.number("final_logit_softcapping")? else { return Ok(None) };
    let cap = cap as f32;
    if cap.is_finite() && cap >= f32::MIN_POSITIVE {
        return Ok(Some(cap));
    }
    Err(text.wrong("final_logit_softcapping", "a number above 0"))
}
