//! LFM2, dense: gated short convolutions interleaved with attention.

use serde_json::Value;

use super::keys;
use super::lfm2_moe::{attention_layers, short_conv};
use super::{
    Architecture, Family, FeedForward, LayerConfig, ModelConfig, Multipliers, QkNorm, TokenMixer,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{MAX_LAYERS, MAX_WIDTH};

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::Lfm2,
    model_type: "lfm2",
    class: "Lfm2ForCausalLM",
    keys: &[
        "block_auto_adjust_ff_dim",
        "block_dim",
        "block_ffn_dim_multiplier",
        "block_mlp_init_scale",
        "block_multiple_of",
        "block_norm_eps",
        "block_out_init_scale",
        "block_use_swiglu",
        "block_use_xavier_init",
        "conv_L_cache",
        "conv_bias",
        "conv_dim",
        "conv_dim_out",
        "conv_use_xavier_init",
        "full_attn_idxs",
        "num_heads",
        "theta",
        "use_pos_enc",
    ],
    read,
};

/// Keys of published files that transformers ignores, each with the key that has the value which counts.
const REPEATED: [(&str, &str); 6] = [
    ("block_dim", "hidden_size"),
    ("block_norm_eps", "rms_norm_eps"),
    ("conv_dim", "hidden_size"),
    ("conv_dim_out", "hidden_size"),
    ("num_heads", "num_attention_heads"),
    ("theta", "rope_theta"),
];

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    for (key, counts) in REPEATED {
        let (found, expected) = (fields.get(key), fields.get(counts));
        if found.is_some() && found.and_then(Value::as_f64) != expected.and_then(Value::as_f64) {
            return Err(fields.unsupported(key, &format!("supported: the value of `{counts}`")));
        }
    }
    for key in ["block_use_swiglu", "use_pos_enc"] {
        if fields.boolean(key)? == Some(false) {
            return Err(fields.unsupported(key, "supported: true"));
        }
    }
    let mut attention = keys::attention(fields)?;
    attention.qk_norm = QkNorm::PerHead;
    let conv = TokenMixer::ShortConv(short_conv(fields)?);
    let feed_forward = FeedForward::Dense { intermediate_size: intermediate_size(fields)? };
    let kinds = match fields.member("layer_types") {
        Some(_) => attention_layers(fields)?,
        None => attention_indices(fields)?,
    };
    let layers = kinds.into_iter().map(|is_attention| LayerConfig {
        mixer: if is_attention { TokenMixer::Attention(attention) } else { conv },
        feed_forward,
    });
    let (architecture, layers) = (FAMILY.architecture, layers.collect());
    let parts = keys::Parts { architecture, layers, router: None, multipliers: Multipliers::NONE };
    keys::model(fields, parts)
}

/// Returns the width of feed-forward parts: two thirds of the given one times a factor, rounded up to a multiple,
/// unless it is given as it is.
fn intermediate_size(fields: &Fields) -> Result<usize, ImportError> {
    const KEY: &str = "intermediate_size";
    let given = fields.required_size(KEY, MAX_WIDTH)?;
    if fields.boolean("block_auto_adjust_ff_dim")? == Some(false) {
        return Ok(given);
    }
    let mut width = (2.0 * given as f64 / 3.0) as usize;
    if let Some(factor) = fields.number("block_ffn_dim_multiplier")? {
        let multiple = fields.required_size("block_multiple_of", MAX_WIDTH)?;
        // As an integer beyond any width if the factor is; a width is at least one multiple.
        width = ((factor * width as f64) as usize).div_ceil(multiple).saturating_mul(multiple);
    }
    if (1..=MAX_WIDTH).contains(&width) {
        return Ok(width);
    }
    Err(fields.wrong(KEY, format!("a width of 1 to {MAX_WIDTH} after its adjustment, not {width}")))
}

/// Returns for each layer whether it is attention, from the indices of those that are; without indices, all are.
fn attention_indices(fields: &Fields) -> Result<Vec<bool>, ImportError> {
    const KEY: &str = "full_attn_idxs";
    let count = fields.required_size("num_hidden_layers", MAX_LAYERS)?;
    let Some(indices) = fields.member(KEY) else { return Ok(vec![true; count]) };
    let expected = || fields.wrong(KEY, format!("a list of indices below {count}"));
    let mut layers = vec![false; count];
    for index in indices.as_array().ok_or_else(expected)? {
        let index = index.as_u64().and_then(|index| usize::try_from(index).ok());
        let layer = index.and_then(|index| layers.get_mut(index)).ok_or_else(expected)?;
        *layer = true;
    }
    Ok(layers)
}
