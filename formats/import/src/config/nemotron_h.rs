//! Nemotron-H and Nemotron-3: blocks of one part each, which is Mamba-2, attention without RoPE, a mixture of experts
//! or a dense part. Feed-forward parts have no gate: `down(max(up(x), 0)²)`.
//!
//! A mixer and the feed-forward block after it are one layer here; a mixer that is followed by another is a layer
//! alone.

use serde_json::Value;

use super::granite_moe_hybrid::refuse_time_step_limits;
use super::keys::{self, Parts};
use super::{
    Activation, Architecture, Family, FeedForward, LayerConfig, Mamba2Config, ModelConfig,
    Multipliers, RopeConfig, RopeScaling, SharedExpert, SharedGate, TokenMixer, routed,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{
    MAX_CONV_KERNEL, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH,
};

const KINDS: &str = "layers_block_type";
const PATTERN: &str = "hybrid_override_pattern";

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::NemotronH,
    model_type: "nemotron_h",
    class: "NemotronHForCausalLM",
    keys: &[
        "attention_bias",
        "auto_map",
        "chunk_size",
        "conv_kernel",
        "expand",
        "hidden_dropout",
        PATTERN,
        KINDS,
        "mamba_head_dim",
        "mamba_hidden_act",
        "mamba_num_heads",
        "mamba_proj_bias",
        "mamba_ssm_cache_dtype",
        "mlp_bias",
        "mlp_hidden_act",
        "moe_intermediate_size",
        "moe_latent_size",
        "moe_shared_expert_intermediate_size",
        "moe_shared_expert_overlap",
        "mtp_hybrid_override_pattern",
        "mtp_layers_block_type",
        "n_group",
        "n_groups",
        "n_routed_experts",
        "n_shared_experts",
        "norm_topk_prob",
        "num_logits_to_keep",
        "num_nextn_predict_layers",
        "rescale_prenorm_residual",
        "residual_in_fp32",
        "routed_scaling_factor",
        "ssm_state_size",
        "time_step_floor",
        "time_step_limit",
        "time_step_max",
        "time_step_min",
        "topk_group",
        "use_bias",
        "use_conv_bias",
        "use_mamba_kernels",
    ],
    read,
};

/// Reads the configuration. What is listed and not read changes training, the order of sums, or draft layers.
fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    for (key, only) in [("mlp_hidden_act", "relu2"), ("mamba_hidden_act", "silu")] {
        if fields.text(key)?.is_some_and(|found| found != only) {
            return Err(fields.unsupported(key, &format!("supported: {only}")));
        }
    }
    // transformers reads the bias of attention and has none.
    for key in ["attention_bias", "mlp_bias"] {
        if fields.boolean(key)? == Some(true) {
            return Err(fields.unsupported(key, "supported: false"));
        }
    }
    if fields.member("moe_latent_size").is_some() {
        let supported = "supported: null; projections around the experts are missing";
        return Err(fields.unsupported("moe_latent_size", supported));
    }
    let parts = Parts {
        architecture: FAMILY.architecture,
        layers: layers(fields)?,
        router: Some(routed::sigmoid_router(fields)?),
        multipliers: Multipliers::NONE,
    };
    Ok(ModelConfig { activation: Activation::Relu2, ..keys::model(fields, parts)? })
}

/// Part of a block.
#[derive(Clone, Copy)]
enum Part {
    Mamba2,
    Attention,
    Experts,
    Dense,
}

impl Part {
    /// Returns the part with a name or a letter of a pattern.
    fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "M" | "mamba" | "linear_attention" => Self::Mamba2,
            "*" | "attention" | "full_attention" => Self::Attention,
            "E" | "moe" => Self::Experts,
            "-" | "mlp" => Self::Dense,
            _ => return None,
        })
    }
}

/// Joins each mixer with the feed-forward block that follows it.
fn layers(fields: &Fields) -> Result<Vec<LayerConfig>, ImportError> {
    let attention = TokenMixer::Attention(keys::attention_with(fields, rope)?);
    let mamba2 = TokenMixer::Mamba2(mamba2(fields)?);
    let (key, parts) = parts(fields)?;
    let mut layers: Vec<LayerConfig> = Vec::new();
    for part in parts {
        let (mixer, feed_forward) = match part {
            Part::Mamba2 => (Some(mamba2), FeedForward::Absent),
            Part::Attention => (Some(attention), FeedForward::Absent),
            Part::Experts => (None, mixture(fields)?),
            Part::Dense => (None, keys::dense(fields)?),
        };
        match (mixer, layers.last_mut()) {
            (Some(mixer), _) => layers.push(LayerConfig { mixer, feed_forward }),
            (None, Some(layer)) if layer.feed_forward == FeedForward::Absent => {
                layer.feed_forward = feed_forward;
            }
            (None, _) => {
                let supported = "supported: feed-forward blocks that follow a mixer";
                return Err(fields.unsupported(key, supported));
            }
        }
    }
    Ok(layers)
}

/// Returns no RoPE. Settings that are not used must be valid all the same, as transformers demands.
fn rope(fields: &Fields, head_dim: usize) -> Result<RopeConfig, ImportError> {
    const BASE: &str = "rope_theta";
    for key in ["rope_parameters", "rope_scaling"] {
        if fields.member(key).is_none() {
            continue;
        }
        // Default: the base of transformers.
        let base = fields.get(BASE).cloned().unwrap_or(Value::from(10_000));
        let rope = keys::partial_rope(&fields.replaced(BASE, base, |_| false), head_dim)?;
        if rope.scaling != RopeScaling::None {
            return Err(fields.unsupported(key, "supported: no scaling, as there is no RoPE"));
        }
    }
    Ok(RopeConfig::NONE)
}

/// Returns the parts of the blocks, and the key that lists them.
fn parts(fields: &Fields) -> Result<(&'static str, Vec<Part>), ImportError> {
    let part = |name: &str, key| {
        let supported = "supported: Mamba-2, attention, moe and mlp";
        Part::of_name(name).ok_or_else(|| fields.unsupported(key, supported))
    };
    let of_pattern = |pattern: &str| {
        let letters = pattern.chars().take(MAX_LAYERS + 1);
        letters.map(|letter| part(letter.encode_utf8(&mut [0; 4]), PATTERN)).collect()
    };
    let wrong = || fields.wrong(KINDS, "a list of texts");
    let of_list = |kinds: &[Value]| {
        let kind = |kind: &Value| part(kind.as_str().ok_or_else(wrong)?, KINDS);
        kinds.iter().take(MAX_LAYERS + 1).map(kind).collect()
    };
    let (key, parts): (_, Result<Vec<_>, _>) = match (fields.get(KINDS), fields.text(PATTERN)?) {
        (Some(_), Some(_)) => {
            let supported = format!("supported: one of it and `{PATTERN}`");
            return Err(fields.unsupported(KINDS, &supported));
        }
        (Some(Value::Array(kinds)), None) => (KINDS, of_list(kinds)),
        (Some(_), None) => return Err(wrong()),
        (None, Some(pattern)) => (PATTERN, of_pattern(pattern)),
        (None, None) => (PATTERN, of_pattern("ME*-")),
    };
    let parts = parts?;
    let count = fields.size("num_hidden_layers", MAX_LAYERS)?;
    if parts.is_empty() || parts.len() > MAX_LAYERS || count.is_some_and(|n| n != parts.len()) {
        let expected = format!("as many blocks as `num_hidden_layers`, at most {MAX_LAYERS}");
        return Err(fields.wrong(key, expected));
    }
    Ok((key, parts))
}

fn mixture(fields: &Fields) -> Result<FeedForward, ImportError> {
    let intermediate_size =
        fields.required_size("moe_shared_expert_intermediate_size", MAX_WIDTH)?;
    let shared = Some(SharedExpert { intermediate_size, gate: SharedGate::Open });
    keys::mixture(fields, "n_routed_experts", "moe_intermediate_size", shared)
}

fn mamba2(fields: &Fields) -> Result<Mamba2Config, ImportError> {
    const GROUPS: &str = "n_groups";
    let num_heads = fields.required_size("mamba_num_heads", MAX_HEADS)?;
    let n_groups = fields.required_size(GROUPS, MAX_HEADS)?;
    if !num_heads.is_multiple_of(n_groups) {
        let expected = format!("a divisor of `mamba_num_heads` = {num_heads}");
        return Err(fields.wrong(GROUPS, expected));
    }
    refuse_time_step_limits(fields)?;
    refuse_long_time_steps(fields)?;
    fields.size("chunk_size", MAX_POSITIONS)?;
    Ok(Mamba2Config {
        num_heads,
        head_dim: fields.required_size("mamba_head_dim", MAX_HEAD_DIM)?,
        n_groups,
        state_size: fields.required_size("ssm_state_size", MAX_HEAD_DIM)?,
        conv_kernel: fields.required_size("conv_kernel", MAX_CONV_KERNEL)?,
        conv_bias: fields.boolean("use_conv_bias")? == Some(true),
        proj_bias: fields.boolean("use_bias")? == Some(true),
        norm_eps: keys::epsilon(fields)?,
    })
}

/// Refuses a lower bound of time steps above the published one. transformers applies it to prompts, but neither to the
/// tokens after them nor, as llama.cpp, to anything else: below 0.001 it hardly counts.
fn refuse_long_time_steps(fields: &Fields) -> Result<(), ImportError> {
    const KEY: &str = "time_step_min";
    match fields.number(KEY)? {
        Some(least) if !(0.0..=0.001).contains(&least) => {
            Err(fields.unsupported(KEY, "supported: 0 to 0.001"))
        }
        _ => Ok(()),
    }
}
