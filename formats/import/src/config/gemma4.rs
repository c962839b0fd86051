//! Gemma 4's MoE model (26B-A4B), a multimodal configuration whose `text_config` is read. Sliding-window
//! layers alternate with global layers, whose heads have a different shape.

use std::collections::BTreeMap;

use serde_json::Value;

use super::keys::{self, Parts};
use super::rope::checked_theta;
use super::{
    Activation, Architecture, AttentionBias, AttentionConfig, BlockNorms, ExpertVector, Family,
    FeedForward, LayerConfig, ModelConfig, Multipliers, OutputGate, QkNorm, RopeConfig, RopePairs,
    RopeScaling, RouterConfig, RouterInput, SharedExpert, SharedGate, Sinks, TokenMixer, ValueNorm,
    ValueSource,
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

/// The text part in a separate checkpoint, with a configuration that is not nested.
pub(super) const TEXT_FAMILY: Family = Family {
    architecture: Architecture::Gemma4Text,
    model_type: "gemma4_text",
    class: "Gemma4ForCausalLM",
    keys: TEXT_KEYS,
    read: |fields| read_text(fields, Architecture::Gemma4Text),
};

/// Keys of `text_config` in addition to the common ones.
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
    "sliding_window",
    "top_k_experts",
    "use_bidirectional_attention",
    "use_double_wide_mlp",
    "vocab_size_per_layer_input",
];

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    let text = keys::text_part(fields, TEXT_FAMILY.model_type, TEXT_KEYS)?;
    let mut config = read_text(&text, FAMILY.architecture)?;
    let ends = fields.numbers("eos_token_id", MAX_EOS_TOKENS)?;
    if !ends.is_empty() {
        keys::check_tokens(fields, "eos_token_id", &ends, config.vocab_size)?;
        config.eos_token_ids = ends;
    }
    config.tie_word_embeddings = keys::tied(fields, &text)?;
    Ok(config)
}

fn read_text(text: &Fields, architecture: Architecture) -> Result<ModelConfig, ImportError> {
    refuse_unsupported(text)?;
    let hidden_size = text.required_size("hidden_size", MAX_WIDTH)?;
    let layers = layers(text)?;
    let parts = Parts {
        architecture,
        layers,
        router: Some(RouterConfig {
            input: RouterInput::Own,
            expert_scale: ExpertVector::Present,
            ..RouterConfig::softmax(true)
        }),
        multipliers: Multipliers { embedding: (hidden_size as f32).sqrt(), ..Multipliers::NONE },
    };
    let mut config = keys::model(text, parts)?;
    config.activation = Activation::GeluTanh;
    config.block_norms = BlockNorms::AroundScaled;
    config.final_logit_softcapping = softcap(text)?;
    Ok(config)
}

/// Rejects features of the family's other sizes.
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
    gelu(text)?;
    // RoPE settings are under `rope_parameters`, per layer kind.
    for key in ["rope_scaling", "rope_theta", "partial_rotary_factor"] {
        if text.member(key).is_some() {
            return Err(text.unsupported(key, "supported: `rope_parameters` alone"));
        }
    }
    text.refuse_null("per_layer_config")?;
    // Bidirectional attention affects only image tokens.
    if !matches!(text.text("use_bidirectional_attention")?, None | Some("vision")) {
        return Err(text.unsupported("use_bidirectional_attention", "supported: vision"));
    }
    Ok(())
}

/// Rejects activations other than GELU with the tanh approximation, which has several names.
pub(super) fn gelu(text: &Fields) -> Result<(), ImportError> {
    // The functions differ only in rounding.
    let gelu = |name: &str| {
        ["gelu_pytorch_tanh", "gelu_python_tanh", "gelu_new", "gelu_fast"].contains(&name)
    };
    if text.text("hidden_activation")?.is_some_and(|name| !gelu(name)) {
        return Err(text.unsupported("hidden_activation", "supported: gelu_pytorch_tanh"));
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LayerAttention {
    Local,
    Global,
}

impl LayerAttention {
    /// Returns the name in `layer_types` and `rope_parameters`.
    fn name(self) -> &'static str {
        match self {
            Self::Local => "sliding_attention",
            Self::Global => "full_attention",
        }
    }
}

/// Number of key and value heads, and the width of all heads.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Heads {
    num_key_value_heads: usize,
    head_dim: usize,
}

fn layers(text: &Fields) -> Result<Vec<LayerConfig>, ImportError> {
    let feed_forward = feed_forward(text)?;
    let kinds = kinds(text)?;
    let layer = |kind| -> Result<LayerConfig, ImportError> {
        let mixer = TokenMixer::Attention(attention(text, kind, heads(text, &kinds, kind)?)?);
        Ok(LayerConfig { mixer, feed_forward })
    };
    let global = layer(LayerAttention::Global)?;
    let local =
        kinds.contains(&LayerAttention::Local).then(|| layer(LayerAttention::Local)).transpose()?;
    let of_kind =
        |kind: &LayerAttention| local.filter(|_| *kind == LayerAttention::Local).unwrap_or(global);
    Ok(kinds.iter().map(of_kind).collect())
}

/// Returns the attention kind of each layer. Without `layer_types`, the last layer of each group is global.
fn kinds(text: &Fields) -> Result<Vec<LayerAttention>, ImportError> {
    const KEY: &str = "layer_types";
    let count = text.required_size("num_hidden_layers", MAX_LAYERS)?;
    let expected = "`num_hidden_layers` of sliding_attention and full_attention, the last one full";
    let Some(kinds) = text.get(KEY) else {
        let every = text.required_size("sliding_window_pattern", MAX_LAYERS)?;
        let is_global = |layer: usize| layer.is_multiple_of(every) || layer == count;
        let kind =
            |layer| if is_global(layer) { LayerAttention::Global } else { LayerAttention::Local };
        return Ok((1..=count).map(kind).collect());
    };
    let kind = |kind: &Value| {
        [LayerAttention::Local, LayerAttention::Global]
            .into_iter()
            .find(|known| kind == known.name())
    };
    let kinds = kinds.as_array().and_then(|kinds| kinds.iter().map(kind).collect());
    let is_right = |kinds: &Vec<LayerAttention>| {
        kinds.len() == count && kinds.last() == Some(&LayerAttention::Global)
    };
    kinds.filter(is_right).ok_or_else(|| text.wrong(KEY, expected))
}

/// Returns the heads of all layers of a kind. `per_layer_config`, written by newer versions of transformers,
/// lists deviations per layer. Without it, the keys of global layers apply.
fn heads(
    text: &Fields,
    kinds: &[LayerAttention],
    kind: LayerAttention,
) -> Result<Heads, ImportError> {
    const KEY: &str = "per_layer_config";
    let local = Heads {
        num_key_value_heads: text.required_size("num_key_value_heads", MAX_HEADS)?,
        head_dim: text.required_size("head_dim", MAX_HEAD_DIM)?,
    };
    let Some(by_layer) = text.object(KEY)? else {
        return if kind == LayerAttention::Global { global_heads(text, local) } else { Ok(local) };
    };
    let by_layer = numbered(&by_layer, kinds.len())?;
    let mut found = None;
    for (layer, _) in kinds.iter().enumerate().filter(|(_, own)| **own == kind) {
        let own = match by_layer.get(&layer) {
            Some(own) => own_heads(own, local)?,
            None => local,
        };
        if *found.get_or_insert(own) != own {
            let expected = format!("the same heads in all layers of {}", kind.name());
            return Err(text.wrong(KEY, expected));
        }
    }
    let found = found.unwrap_or(local);
    if kind == LayerAttention::Global {
        refuse_other_heads(text, found)?;
    }
    Ok(found)
}

/// Returns the per-layer entries by layer number. Numbers may have leading zeros.
fn numbered(by_layer: &Fields, count: usize) -> Result<BTreeMap<usize, Fields>, ImportError> {
    if let Some(layer) = by_layer.nulls().next() {
        return Err(by_layer.wrong(layer, "an object"));
    }
    let mut out = BTreeMap::new();
    for (name, _) in by_layer.members() {
        let layer = name.parse().ok().filter(|&layer: &usize| layer < count);
        let layer = layer.ok_or_else(|| by_layer.wrong(name, format!("a layer below {count}")))?;
        if let Some(own) = by_layer.object(name)?
            && out.insert(layer, own).is_some()
        {
            return Err(by_layer.wrong(name, "each layer once"));
        }
    }
    Ok(out)
}

/// Returns the heads of one layer in `per_layer_config`.
fn own_heads(own: &Fields, others: Heads) -> Result<Heads, ImportError> {
    let known = ["head_dim", "num_key_value_heads"];
    if let Some((key, value)) = own.members().find(|(key, _)| !known.contains(key)) {
        return Err(own.unknown(key, value));
    }
    for key in known {
        own.refuse_null(key)?;
    }
    Ok(Heads {
        num_key_value_heads: own
            .size("num_key_value_heads", MAX_HEADS)?
            .unwrap_or(others.num_key_value_heads),
        head_dim: own.size("head_dim", MAX_HEAD_DIM)?.unwrap_or(others.head_dim),
    })
}

/// Returns the heads of global layers from their separate keys.
fn global_heads(text: &Fields, local: Heads) -> Result<Heads, ImportError> {
    let own = match values_of(text, LayerAttention::Global)? {
        ValueSource::Keys => text.size("num_global_key_value_heads", MAX_HEADS)?,
        ValueSource::Projection => None,
    };
    Ok(Heads {
        num_key_value_heads: own.unwrap_or(local.num_key_value_heads),
        head_dim: text.required_size("global_head_dim", MAX_HEAD_DIM)?,
    })
}

/// Checks that the keys of global layers match `per_layer_config`, if both are present.
fn refuse_other_heads(text: &Fields, found: Heads) -> Result<(), ImportError> {
    let said = global_heads(text, found)?;
    let pairs = [
        ("global_head_dim", said.head_dim, found.head_dim),
        ("num_global_key_value_heads", said.num_key_value_heads, found.num_key_value_heads),
    ];
    for (key, said, found) in pairs {
        if text.member(key).is_some() && said != found {
            return Err(text.wrong(key, format!("{found}, as `per_layer_config` says")));
        }
    }
    Ok(())
}

/// Reads the experts and the dense part next to them.
fn feed_forward(text: &Fields) -> Result<FeedForward, ImportError> {
    let intermediate_size = text.required_size("intermediate_size", MAX_WIDTH)?;
    let shared = SharedExpert { intermediate_size, gate: SharedGate::Open };
    let shared = Some(shared);
    keys::mixture_of(text, "num_experts", "top_k_experts", "moe_intermediate_size", shared)
}

/// Returns the source of the values for a layer kind.
fn values_of(text: &Fields, kind: LayerAttention) -> Result<ValueSource, ImportError> {
    Ok(match (kind, text.boolean("attention_k_eq_v")?) {
        (LayerAttention::Global, Some(true)) => ValueSource::Keys,
        _ => ValueSource::Projection,
    })
}

fn attention(
    text: &Fields,
    kind: LayerAttention,
    heads: Heads,
) -> Result<AttentionConfig, ImportError> {
    let Heads { num_key_value_heads, head_dim } = heads;
    let num_attention_heads = text.required_size("num_attention_heads", MAX_HEADS)?;
    if !num_attention_heads.is_multiple_of(num_key_value_heads) {
        let expected = format!("a divisor of `num_attention_heads` = {num_attention_heads}");
        return Err(text.wrong("num_key_value_heads", format!("{expected} in every layer")));
    }
    if !head_dim.is_multiple_of(2) {
        return Err(text.wrong("head_dim", "an even number in every layer"));
    }
    Ok(AttentionConfig {
        rope_pairs: RopePairs::Halves,
        num_attention_heads,
        num_key_value_heads,
        head_dim,
        scale: 1.0,
        rope: Rope::read(text, kind)?.config(head_dim),
        qk_norm: QkNorm::PerHead,
        values: values_of(text, kind)?,
        value_norm: ValueNorm::PerHead,
        bias: AttentionBias::Absent,
        sliding_window: match kind {
            LayerAttention::Local => Some(text.required_size("sliding_window", MAX_POSITIONS)?),
            LayerAttention::Global => None,
        },
        sinks: Sinks::Absent,
        output_gate: OutputGate::Open,
    })
}

struct Rope {
    theta: f64,
    /// Fraction of a head's pairs that are rotated.
    part: f64,
}

impl Rope {
    fn read(text: &Fields, kind: LayerAttention) -> Result<Self, ImportError> {
        let all = text.object("rope_parameters")?;
        let all = all.ok_or_else(|| text.wrong("rope_parameters", "an object"))?;
        let fields = all.object(kind.name())?;
        let fields = fields.ok_or_else(|| all.wrong(kind.name(), "an object"))?;
        let known = ["rope_type", "rope_theta", "partial_rotary_factor"];
        if let Some((key, value)) = fields.members().find(|(key, _)| !known.contains(key)) {
            return Err(fields.unknown(key, value));
        }
        for key in known {
            fields.refuse_null(key)?;
        }
        let part = fields.number("partial_rotary_factor")?.unwrap_or(1.0);
        match fields.text("rope_type")? {
            Some("proportional") => {}
            None | Some("default") if part == 1.0 => {}
            None | Some("default") => {
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

pub(super) fn softcap(text: &Fields) -> Result<Option<f32>, ImportError> {
    let Some(cap) = text.number("final_logit_softcapping")? else { return Ok(None) };
    let cap = cap as f32;
    if cap.is_finite() && cap >= f32::MIN_POSITIVE {
        return Ok(Some(cap));
    }
    Err(text.wrong("final_logit_softcapping", "a number above 0"))
}
