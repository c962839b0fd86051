//! Readers of configuration keys common to several families.

use serde_json::Value;

use super::rope::RotatedPart;
use super::{
    Activation, Architecture, AttentionBias, AttentionConfig, BlockNorms, ContextLimit, ExpertBias,
    ExpertFormat, FeedForward, LayerConfig, ModelConfig, Multipliers, OutputGate, QkNorm,
    RopeConfig, RopePairs, RouterConfig, SharedExpert, Sinks, TokenMixer, ValueNorm, ValueSource,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{
    MAX_EOS_TOKENS, MAX_EXPERTS, MAX_EXPERTS_OF_ALL_LAYERS, MAX_EXPERTS_PER_TOKEN, MAX_HEAD_DIM,
    MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH,
};

/// Keys that all families read.
pub(super) const COMMON: &[&str] = &[
    "architectures",
    "bos_token_id",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "is_causal",
    "layer_types",
    "max_position_embeddings",
    "model_type",
    "num_attention_heads",
    "num_experts_per_tok",
    "num_hidden_layers",
    "num_key_value_heads",
    "partial_rotary_factor",
    "quantization_config",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "tie_word_embeddings",
    "use_sliding_window",
    "vocab_size",
];

/// Keys without effect on inference: bookkeeping, training, and disabled windows.
const IGNORED: &[&str] = &[
    "attention_dropout",
    "chunk_size_feed_forward",
    "dtype",
    "id2label",
    "initializer_range",
    "label2id",
    "max_window_layers",
    "name_or_path",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "problem_type",
    "return_dict",
    "router_aux_loss_coef",
    "tokenizer_class",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
];

/// Rejects known options that change the graph and that no family supports. Options in `read` are handled by
/// the family itself.
pub(super) fn refuse_unsupported(fields: &Fields, read: &[&str]) -> Result<(), ImportError> {
    let is_on = fields.boolean("use_sliding_window")? == Some(true);
    if is_on && !read.contains(&"use_sliding_window") {
        return Err(fields.unsupported("use_sliding_window", "supported: false"));
    }
    if fields.boolean("is_causal")? == Some(false) {
        return Err(fields.unsupported("is_causal", "supported: true"));
    }
    let window_is_off = fields.boolean("use_sliding_window")? == Some(false);
    let has_window = fields.member("sliding_window").is_some() && !window_is_off;
    if has_window && !read.contains(&"sliding_window") {
        return Err(fields.unsupported("sliding_window", "supported: null"));
    }
    if fields.get("quantization_config").is_some() && !read.contains(&"quantization_config") {
        let supported = "only checkpoints in bf16, f16 or f32 can be read";
        return Err(fields.unsupported("quantization_config", supported));
    }
    Ok(())
}

/// Rejects keys outside the text part that belong inside it.
fn refuse_outside(whole: &Fields) -> Result<(), ImportError> {
    for key in ["rope_parameters", "rope_scaling"] {
        if whole.member(key).is_some() {
            return Err(whole.unsupported(key, "supported: within `text_config`"));
        }
    }
    Ok(())
}

/// Returns the text part of a multimodal configuration with its defaults. `known` lists the keys that the
/// family of the text part reads.
pub(super) fn text_part(
    whole: &Fields,
    model_type: &str,
    known: &[&str],
) -> Result<Fields, ImportError> {
    refuse_outside(whole)?;
    let text = whole.object("text_config")?;
    let text = text.ok_or_else(|| whole.wrong("text_config", "an object"))?;
    let text = super::defaults::complete(text, model_type)?;
    refuse_unsupported(&text, known)?;
    refuse_unknown(&text, known)?;
    Ok(text)
}

/// Returns true if a key does not help to identify a family. Either all families have it, or its value
/// enables nothing.
pub(super) fn is_plain(key: &str, value: &Value) -> bool {
    let inert = match value {
        Value::Bool(on) => !on,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    inert || key.starts_with('_') || COMMON.contains(&key) || IGNORED.contains(&key)
}

/// Rejects keys that are unknown to the family and not ignored in general.
pub(super) fn refuse_unknown(fields: &Fields, keys: &[&str]) -> Result<(), ImportError> {
    match fields.members().find(|(key, value)| !is_plain(key, value) && !keys.contains(key)) {
        None => Ok(()),
        Some((key, value)) => Err(fields.unknown(key, value)),
    }
}

/// Family-specific parts of a configuration.
pub(super) struct Parts {
    pub architecture: Architecture,
    pub layers: Vec<LayerConfig>,
    /// Router of the mixture layers. `None` in families without mixtures.
    pub router: Option<RouterConfig>,
    pub multipliers: Multipliers,
}

/// Builds the model configuration from the family's parts and the common keys.
pub(super) fn model(fields: &Fields, parts: Parts) -> Result<ModelConfig, ImportError> {
    refuse_too_many(fields, &parts.layers)?;
    let vocab_size = fields.required_size("vocab_size", MAX_VOCABULARY)?;
    let config = ModelConfig {
        architecture: parts.architecture,
        vocab_size,
        hidden_size: fields.required_size("hidden_size", MAX_WIDTH)?,
        num_hidden_layers: parts.layers.len(),
        max_position_embeddings: fields.required_size("max_position_embeddings", MAX_POSITIONS)?,
        context_limit: ContextLimit::Trained,
        rms_norm_eps: epsilon(fields)?,
        tie_word_embeddings: fields.boolean("tie_word_embeddings")?.unwrap_or(false),
        multipliers: parts.multipliers,
        activation: Activation::Silu,
        expert_bias: ExpertBias::Absent,
        expert_format: ExpertFormat::Floats,
        block_norms: BlockNorms::Before,
        final_logit_softcapping: None,
        router: parts.router.filter(|_| parts.layers.iter().any(LayerConfig::is_mixture)),
        layers: parts.layers,
        bos_token_id: tokens(fields, "bos_token_id", 1, vocab_size)?.first().copied(),
        eos_token_ids: tokens(fields, "eos_token_id", MAX_EOS_TOKENS, vocab_size)?,
    };
    Ok(config)
}

/// Returns true if the head of a multimodal model is tied to the embedding. The key outside the text part
/// decides.
pub(super) fn tied(whole: &Fields, text: &Fields) -> Result<bool, ImportError> {
    const KEY: &str = "tie_word_embeddings";
    let is_tied = whole.boolean(KEY)?.unwrap_or(false);
    let of_text = text.boolean(KEY)?.filter(|_| text.member(KEY).is_some());
    if whole.member(KEY).is_none() && of_text.is_some_and(|of_text| of_text != is_tied) {
        return Err(text.wrong(KEY, format!("{is_tied}, or that key beside `text_config`")));
    }
    Ok(is_tied)
}

/// Returns token ids within the vocabulary. A family's default id may exceed a model's vocabulary; the model
/// then has no such token.
fn tokens(
    fields: &Fields,
    key: &str,
    limit: usize,
    vocabulary: usize,
) -> Result<Vec<u32>, ImportError> {
    let mut tokens = fields.numbers(key, limit)?;
    if fields.member(key).is_none() {
        tokens.retain(|&token| (token as usize) < vocabulary);
    }
    check_tokens(fields, key, &tokens, vocabulary)?;
    Ok(tokens)
}

/// Rejects a model with more experts in total than the limit.
fn refuse_too_many(fields: &Fields, layers: &[LayerConfig]) -> Result<(), ImportError> {
    let experts = layers.iter().map(|layer| match layer.feed_forward {
        FeedForward::Moe { num_experts, .. } => num_experts,
        FeedForward::Absent | FeedForward::Dense { .. } => 0,
    });
    let found = experts.sum::<usize>();
    if found <= MAX_EXPERTS_OF_ALL_LAYERS {
        return Ok(());
    }
    Err(ImportError::Limit {
        file: fields.file().into(),
        what: "the number of experts of all layers".into(),
        found: found as u64,
        limit: MAX_EXPERTS_OF_ALL_LAYERS as u64,
    })
}

/// Rejects activations other than SiLU, which has two names.
pub(super) fn silu(fields: &Fields) -> Result<(), ImportError> {
    match fields.text("hidden_act")? {
        None | Some("silu" | "swish") => Ok(()),
        Some(_) => Err(fields.unsupported("hidden_act", "supported: silu, swish")),
    }
}

pub(super) fn full_attention(fields: &Fields) -> Result<(), ImportError> {
    attention_of_kind(fields, "full_attention")
}

/// Rejects layers of another kind than the given one.
pub(super) fn attention_of_kind(fields: &Fields, only: &str) -> Result<(), ImportError> {
    let count = fields.required_size("num_hidden_layers", MAX_LAYERS)?;
    match fields.get("layer_types") {
        None => Ok(()),
        Some(Value::Array(types)) if types.iter().any(|kind| kind != only) => {
            Err(fields.unsupported("layer_types", &format!("supported: {only}")))
        }
        Some(Value::Array(types)) if types.len() == count => Ok(()),
        Some(_) => Err(fields.wrong("layer_types", format!("a list of {count}"))),
    }
}

/// Reads attention with the usual keys for heads, RoPE and scale; without norms and biases.
pub(super) fn attention(fields: &Fields) -> Result<AttentionConfig, ImportError> {
    attention_with(fields, rope)
}

/// Reads [`attention`] with a family-specific RoPE reader, which receives the head width.
pub(super) fn attention_with(
    fields: &Fields,
    rope: fn(&Fields, usize) -> Result<RopeConfig, ImportError>,
) -> Result<AttentionConfig, ImportError> {
    let hidden_size = fields.required_size("hidden_size", MAX_WIDTH)?;
    let num_attention_heads = fields.required_size("num_attention_heads", MAX_HEADS)?;
    let key_value_heads = fields.size("num_key_value_heads", MAX_HEADS)?;
    let num_key_value_heads = key_value_heads.unwrap_or(num_attention_heads);
    if !num_attention_heads.is_multiple_of(num_key_value_heads) {
        let expected = format!("a divisor of `num_attention_heads` = {num_attention_heads}");
        return Err(fields.wrong("num_key_value_heads", expected));
    }
    let head_dim = match fields.size("head_dim", MAX_HEAD_DIM)? {
        Some(head_dim) => head_dim,
        None if hidden_size.is_multiple_of(num_attention_heads) => {
            hidden_size / num_attention_heads
        }
        None => return Err(fields.wrong("head_dim", "an even number")),
    };
    if !head_dim.is_multiple_of(2) || head_dim > MAX_HEAD_DIM {
        return Err(fields.wrong("head_dim", format!("an even number up to {MAX_HEAD_DIM}")));
    }
    Ok(AttentionConfig {
        num_attention_heads,
        num_key_value_heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        rope: rope(fields, head_dim)?,
        rope_pairs: RopePairs::Halves,
        qk_norm: QkNorm::Absent,
        values: ValueSource::Projection,
        value_norm: ValueNorm::Absent,
        bias: AttentionBias::Absent,
        sliding_window: None,
        sinks: Sinks::Absent,
        output_gate: OutputGate::Open,
    })
}

/// Returns the biases from `attention_bias`: all projections or none.
pub(super) fn attention_bias(fields: &Fields) -> Result<AttentionBias, ImportError> {
    Ok(match fields.boolean("attention_bias")? {
        Some(true) => AttentionBias::All,
        _ => AttentionBias::Absent,
    })
}

/// Returns the biases of queries, keys and values, enabled by the given key.
pub(super) fn input_bias(fields: &Fields, key: &str) -> Result<AttentionBias, ImportError> {
    Ok(match fields.boolean(key)? {
        Some(true) => AttentionBias::QueryKeyValue,
        _ => AttentionBias::Absent,
    })
}

/// Reads RoPE with partial rotation of each head.
pub(super) fn partial_rope(fields: &Fields, head_dim: usize) -> Result<RopeConfig, ImportError> {
    super::rope::rope(fields, head_dim, RotatedPart::Part(head_dim))
}

/// Reads [`partial_rope`], where `rotary_dim` may give the number of rotated elements.
pub(super) fn rope_of_dims(fields: &Fields, head_dim: usize) -> Result<RopeConfig, ImportError> {
    const KEY: &str = "rotary_dim";
    let dims = fields.size(KEY, MAX_HEAD_DIM)?.unwrap_or(head_dim);
    if dims > head_dim || !dims.is_multiple_of(2) {
        return Err(fields.wrong(KEY, format!("an even number up to `head_dim` = {head_dim}")));
    }
    super::rope::rope(fields, head_dim, RotatedPart::Part(dims))
}

/// Returns the sliding window of each layer. Without `layer_types`, `is_windowed` selects the layers.
pub(super) fn windows(
    fields: &Fields,
    is_windowed: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>, ImportError> {
    let count = fields.required_size("num_hidden_layers", MAX_LAYERS)?;
    let window = || fields.size("sliding_window", MAX_POSITIONS);
    let Some(types) = fields.get("layer_types") else {
        let of = |layer| if is_windowed(layer) { window() } else { Ok(None) };
        return (0..count).map(of).collect();
    };
    let supported = "supported: one of sliding_attention and full_attention for each layer";
    let unsupported = || fields.unsupported("layer_types", supported);
    let types = types.as_array().filter(|types| types.len() == count).ok_or_else(unsupported)?;
    let of = |kind: &Value| match kind.as_str() {
        Some("sliding_attention") => {
            let expected = "a number of positions";
            window()?.map(Some).ok_or_else(|| fields.wrong("sliding_window", expected))
        }
        Some("full_attention") => Ok(None),
        _ => Err(unsupported()),
    };
    types.iter().map(of).collect()
}

pub(super) fn rope(fields: &Fields, head_dim: usize) -> Result<RopeConfig, ImportError> {
    super::rope::rope(fields, head_dim, RotatedPart::Whole)
}

/// Returns layers that differ only in their feed-forward part.
pub(super) fn layers(
    fields: &Fields,
    attention: AttentionConfig,
    feed_forward: impl Fn(u32) -> Result<FeedForward, ImportError>,
) -> Result<Vec<LayerConfig>, ImportError> {
    let count = fields.required_size("num_hidden_layers", MAX_LAYERS)?;
    let mixer = TokenMixer::Attention(attention);
    let layer = |layer| Ok(LayerConfig { mixer, feed_forward: feed_forward(layer)? });
    (0u32..).take(count).map(layer).collect()
}

/// Returns a function that tests whether a layer is a mixture, from `decoder_sparse_step` and
/// `mlp_only_layers` as in Qwen's families.
pub(super) fn sparse_layers(fields: &Fields) -> Result<impl Fn(u32) -> bool + use<>, ImportError> {
    let step = fields.size("decoder_sparse_step", MAX_LAYERS)?.unwrap_or(1);
    let dense_layers = fields.numbers("mlp_only_layers", MAX_LAYERS)?;
    let none = fields.get("num_experts").is_some_and(|n| n.as_u64() == Some(0));
    Ok(move |layer: u32| {
        !none && !dense_layers.contains(&layer) && (layer as usize + 1).is_multiple_of(step)
    })
}

/// Reads an integer from 0 to `limit`.
pub(super) fn count(
    fields: &Fields,
    key: &str,
    limit: usize,
) -> Result<Option<usize>, ImportError> {
    match fields.number(key)? {
        Some(0.0) => Ok(Some(0)),
        _ => fields.size(key, limit),
    }
}

pub(super) fn dense(fields: &Fields) -> Result<FeedForward, ImportError> {
    let intermediate_size = fields.required_size("intermediate_size", MAX_WIDTH)?;
    Ok(FeedForward::Dense { intermediate_size })
}

/// Reads a model of dense layers with the same attention.
pub(super) fn dense_model(
    fields: &Fields,
    architecture: Architecture,
    attention: AttentionConfig,
) -> Result<ModelConfig, ImportError> {
    silu(fields)?;
    let layers = layers(fields, attention, |_| dense(fields))?;
    model(fields, Parts { architecture, layers, router: None, multipliers: Multipliers::NONE })
}

/// Reads a mixture of experts, with the given keys for the number and the inner width of experts.
pub(super) fn mixture(
    fields: &Fields,
    experts_key: &str,
    width_key: &str,
    shared: Option<SharedExpert>,
) -> Result<FeedForward, ImportError> {
    mixture_of(fields, experts_key, "num_experts_per_tok", width_key, shared)
}

/// Reads [`mixture`] with a different key for the number of experts per token.
pub(super) fn mixture_of(
    fields: &Fields,
    experts_key: &str,
    chosen_key: &str,
    width_key: &str,
    shared: Option<SharedExpert>,
) -> Result<FeedForward, ImportError> {
    let num_experts = fields.required_size(experts_key, MAX_EXPERTS)?;
    let num_experts_per_tok = fields.required_size(chosen_key, MAX_EXPERTS_PER_TOKEN)?;
    if num_experts_per_tok > num_experts {
        let expected = format!("at most `{experts_key}` = {num_experts}");
        return Err(fields.wrong(chosen_key, expected));
    }
    let moe_intermediate_size = fields.required_size(width_key, MAX_WIDTH)?;
    Ok(FeedForward::Moe { num_experts, num_experts_per_tok, moe_intermediate_size, shared })
}

/// Reads a factor that must be finite and not zero.
pub(super) fn factor(fields: &Fields, key: &str) -> Result<f32, ImportError> {
    match fields.number(key)?.map(|value| value as f32) {
        Some(value) if value.is_finite() && value.abs() >= f32::MIN_POSITIVE => Ok(value),
        _ => Err(fields.wrong(key, "a finite number other than 0")),
    }
}

pub(super) fn epsilon(fields: &Fields) -> Result<f32, ImportError> {
    match fields.number("rms_norm_eps")?.map(|value| value as f32) {
        Some(epsilon) if epsilon > 0.0 && epsilon < 1.0 => Ok(epsilon),
        _ => Err(fields.wrong("rms_norm_eps", "a number between 0 and 1")),
    }
}

pub(super) fn check_tokens(
    fields: &Fields,
    key: &str,
    tokens: &[u32],
    vocabulary: usize,
) -> Result<(), ImportError> {
    if tokens.iter().all(|&token| (token as usize) < vocabulary) {
        return Ok(());
    }
    Err(fields.wrong(key, format!("token ids below `vocab_size` = {vocabulary}")))
}
