//! Keys common to families with latent attention in DeepSeek's layout.

use super::{LayerConfig, RopeConfig, RopePairs, RopeScaling, TokenMixer};
use super::{keys, routed};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_WIDTH};

/// Attention with latents shared by all heads (DeepSeek-V2, arXiv 2405.04434).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentConfig {
    /// Number of heads.
    pub num_attention_heads: usize,
    /// Width of the query latent; `None` if queries are projected from the hidden state.
    pub q_lora_rank: Option<usize>,
    /// Width of the latent of keys and values.
    pub kv_lora_rank: usize,
    /// Elements of a query without RoPE.
    pub qk_nope_head_dim: usize,
    /// Elements of a query with RoPE, and of the shared key for them; even.
    pub qk_rope_head_dim: usize,
    /// Width of a head's values.
    pub v_head_dim: usize,
    /// Factor of the products of queries and keys.
    pub scale: f32,
    /// RoPE settings.
    pub rope: RopeConfig,
    /// RoPE pairing.
    pub rope_pairs: RopePairs,
    /// Epsilon of the latent norms.
    pub norm_eps: f32,
}

impl LatentConfig {
    /// Returns the number of cached elements per position: the latent and the shared key.
    pub const fn key_dim(&self) -> usize {
        self.kv_lora_rank + self.qk_rope_head_dim
    }
}

/// Epsilon of the latent norms: a default in the published code that ignores `rms_norm_eps`.
const LATENT_NORM_EPS: f32 = 1e-6;

pub(super) fn attention(fields: &Fields, pairs: RopePairs) -> Result<LatentConfig, ImportError> {
    let rope_dim = fields.required_size("qk_rope_head_dim", MAX_HEAD_DIM)?;
    refuse_other_size(fields, "head_dim", rope_dim)?;
    attention_of_parts(fields, pairs)
}

fn refuse_other_size(fields: &Fields, key: &str, expected: usize) -> Result<(), ImportError> {
    match fields.size(key, 2 * MAX_HEAD_DIM)? {
        Some(found) if found != expected => {
            Err(fields.wrong(key, format!("{expected}, or no such key")))
        }
        _ => Ok(()),
    }
}

/// Reads [`attention`], whatever `head_dim` says.
pub(super) fn attention_of_parts(
    fields: &Fields,
    pairs: RopePairs,
) -> Result<LatentConfig, ImportError> {
    for key in ["attention_bias", "mlp_bias"] {
        if fields.boolean(key)? == Some(true) {
            return Err(fields.unsupported(key, "supported: false"));
        }
    }
    let heads = fields.required_size("num_attention_heads", MAX_HEADS)?;
    if fields.size("num_key_value_heads", MAX_HEADS)?.is_some_and(|count| count != heads) {
        let supported = format!("supported: `num_attention_heads` = {heads}");
        return Err(fields.unsupported("num_key_value_heads", &supported));
    }
    let rope_dim = fields.required_size("qk_rope_head_dim", MAX_HEAD_DIM)?;
    if !rope_dim.is_multiple_of(2) {
        return Err(fields.wrong("qk_rope_head_dim", "an even number"));
    }
    let nope_dim = fields.required_size("qk_nope_head_dim", MAX_HEAD_DIM)?;
    refuse_other_size(fields, "qk_head_dim", nope_dim + rope_dim)?;
    let rope = keys::rope(fields, rope_dim)?;
    // Queries and keys are each multiplied by a magnitude if YaRN scales the frequencies.
    let magnitude = match &rope.scaling {
        RopeScaling::Yarn(yarn) => yarn.mscale(yarn.mscale_all_dim),
        _ => 1.0,
    };
    Ok(LatentConfig {
        num_attention_heads: heads,
        q_lora_rank: fields.size("q_lora_rank", MAX_WIDTH)?,
        kv_lora_rank: fields.required_size("kv_lora_rank", MAX_WIDTH)?,
        qk_nope_head_dim: nope_dim,
        qk_rope_head_dim: rope_dim,
        v_head_dim: fields.required_size("v_head_dim", MAX_HEAD_DIM)?,
        scale: (magnitude * magnitude / ((nope_dim + rope_dim) as f64).sqrt()) as f32,
        rope,
        rope_pairs: pairs,
        norm_eps: LATENT_NORM_EPS,
    })
}

/// Returns layers with the same attention. Layers selected by `is_dense` are dense; the others are mixtures
/// with shared experts.
pub(super) fn layers(
    fields: &Fields,
    attention: LatentConfig,
    is_dense: impl Fn(usize) -> bool,
) -> Result<Vec<LayerConfig>, ImportError> {
    layers_of_kind(fields, "full_attention", attention, is_dense)
}

/// Returns [`layers`] whose kind has another name.
pub(super) fn layers_of_kind(
    fields: &Fields,
    kind: &str,
    attention: LatentConfig,
    is_dense: impl Fn(usize) -> bool,
) -> Result<Vec<LayerConfig>, ImportError> {
    keys::attention_of_kind(fields, kind)?;
    let count = fields.required_size("num_hidden_layers", MAX_LAYERS)?;
    routed::refuse_sparser(fields)?;
    let mixer = TokenMixer::Latent(attention);
    let layer = |layer| {
        let feed_forward = match is_dense(layer) {
            true => keys::dense(fields)?,
            false => routed::mixture(fields)?,
        };
        Ok(LayerConfig { mixer, feed_forward })
    };
    (0..count).map(layer).collect()
}

pub(super) fn rope_pairs(fields: &Fields) -> Result<RopePairs, ImportError> {
    Ok(match fields.boolean("rope_interleave")? {
        Some(true) => RopePairs::Adjacent,
        _ => RopePairs::Halves,
    })
}
