//! Granite 4 hybrid: Mamba-2 layers interleaved with attention, mostly without RoPE. The feed-forward parts are
//! those of Granite MoE with a shared expert; without experts, the shared expert is the dense part.

use serde_json::Value;

use super::granite_moe::{attention_of, multipliers, without_residual_multiplier};
use super::keys::{self, Parts};
use super::{
    Architecture, Family, FeedForward, LayerConfig, Mamba2Config, ModelConfig, RopeConfig,
    RouterConfig, SharedExpert, SharedGate, TokenMixer,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{
    MAX_CONV_KERNEL, MAX_EXPERTS, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH,
};

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::GraniteMoeHybrid,
    model_type: "granitemoehybrid",
    class: "GraniteMoeHybridForCausalLM",
    keys: &[
        "attention_bias",
        "attention_multiplier",
        "embedding_multiplier",
        "init_method",
        "logits_scaling",
        "mamba_chunk_size",
        "mamba_conv_bias",
        "mamba_d_conv",
        "mamba_d_head",
        "mamba_d_state",
        "mamba_expand",
        "mamba_n_groups",
        "mamba_n_heads",
        "mamba_proj_bias",
        "normalization_function",
        "num_local_experts",
        "position_embedding_type",
        "residual_multiplier",
        "shared_intermediate_size",
        "time_step_limit",
    ],
    read,
};

/// Reads the configuration. `init_method` and `mamba_chunk_size` change nothing but training and the order of sums.
fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    const NORM: &str = "normalization_function";
    if fields.text(NORM)?.is_some_and(|norm| norm != "rmsnorm") {
        return Err(fields.unsupported(NORM, "supported: rmsnorm"));
    }
    let attention = attention_of(fields, rope)?;
    let mamba2 = TokenMixer::Mamba2(mamba2(fields)?);
    let feed_forward = feed_forward(fields)?;
    let layer = |is_attention: bool| LayerConfig {
        mixer: if is_attention { TokenMixer::Attention(attention) } else { mamba2 },
        feed_forward,
    };
    let layers = attention_layers(fields)?.into_iter().map(layer).collect();
    let parts = Parts {
        architecture: FAMILY.architecture,
        layers,
        router: Some(RouterConfig::softmax(true)),
        multipliers: multipliers(fields)?,
    };
    without_residual_multiplier(fields, keys::model(fields, parts)?)
}

/// Reads RoPE: there is none unless `position_embedding_type` is "rope". Settings that are not used must be valid
/// all the same, as transformers demands.
fn rope(fields: &Fields, head_dim: usize) -> Result<RopeConfig, ImportError> {
    const KEY: &str = "position_embedding_type";
    let rope = keys::rope(fields, head_dim)?;
    match fields.text(KEY)? {
        Some("rope") => Ok(rope),
        None | Some("nope") => Ok(RopeConfig::NONE),
        Some(_) => Err(fields.unsupported(KEY, "supported: rope, nope")),
    }
}

fn feed_forward(fields: &Fields) -> Result<FeedForward, ImportError> {
    const EXPERTS: &str = "num_local_experts";
    let intermediate_size = fields.required_size("shared_intermediate_size", MAX_WIDTH)?;
    if keys::count(fields, EXPERTS, MAX_EXPERTS)? == Some(0) {
        return Ok(FeedForward::Dense { intermediate_size });
    }
    let shared = Some(SharedExpert { intermediate_size, gate: SharedGate::Open });
    keys::mixture(fields, EXPERTS, "intermediate_size", shared)
}

fn mamba2(fields: &Fields) -> Result<Mamba2Config, ImportError> {
    const HEAD_DIM: &str = "mamba_d_head";
    const GROUPS: &str = "mamba_n_groups";
    let hidden_size = fields.required_size("hidden_size", MAX_WIDTH)?;
    let inner = fields.required_size("mamba_expand", MAX_WIDTH / hidden_size)? * hidden_size;
    let num_heads = fields.required_size("mamba_n_heads", MAX_HEADS)?;
    let is_auto = fields.get(HEAD_DIM).is_none_or(|value| value.as_str() == Some("auto"));
    let head_dim = match is_auto {
        true => inner / num_heads,
        false => fields.required_size(HEAD_DIM, MAX_HEAD_DIM)?,
    };
    if head_dim == 0 || head_dim > MAX_HEAD_DIM || head_dim * num_heads != inner {
        let expected =
            format!("`mamba_expand` * `hidden_size` / `mamba_n_heads` = {inner} / {num_heads}");
        return Err(fields.wrong(HEAD_DIM, expected));
    }
    let n_groups = fields.required_size(GROUPS, MAX_HEADS)?;
    if !num_heads.is_multiple_of(n_groups) {
        let expected = format!("a divisor of `mamba_n_heads` = {num_heads}");
        return Err(fields.wrong(GROUPS, expected));
    }
    refuse_time_step_limits(fields)?;
    fields.size("mamba_chunk_size", MAX_POSITIONS)?;
    Ok(Mamba2Config {
        num_heads,
        head_dim,
        n_groups,
        state_size: fields.required_size("mamba_d_state", MAX_HEAD_DIM)?,
        conv_kernel: fields.required_size("mamba_d_conv", MAX_CONV_KERNEL)?,
        conv_bias: fields.boolean("mamba_conv_bias")? == Some(true),
        proj_bias: fields.boolean("mamba_proj_bias")? == Some(true),
        norm_eps: keys::epsilon(fields)?,
    })
}

/// Refuses bounds of time steps other than 0 and infinity. transformers applies others to prompts, but not to the
/// tokens after them.
pub(super) fn refuse_time_step_limits(fields: &Fields) -> Result<(), ImportError> {
    const KEY: &str = "time_step_limit";
    let is_infinite = |value: &Value| {
        let text = value.get("__float__").or(Some(value)).and_then(Value::as_str);
        text.is_some_and(|text| text.eq_ignore_ascii_case("infinity"))
    };
    match fields.get(KEY) {
        None => Ok(()),
        Some(Value::Array(limits)) if matches!(&limits[..], [low, high] if low.as_f64() == Some(0.0) && is_infinite(high)) => {
            Ok(())
        }
        Some(_) => Err(fields.unsupported(KEY, "supported: 0 and Infinity")),
    }
}

/// Returns for each layer whether it is attention. Kinds have two names.
fn attention_layers(fields: &Fields) -> Result<Vec<bool>, ImportError> {
    const KEY: &str = "layer_types";
    let count = fields.required_size("num_hidden_layers", MAX_LAYERS)?;
    let Some(types) = fields.get(KEY) else { return Ok(vec![false; count]) };
    let types = types.as_array().filter(|types| types.len() == count);
    let types = types.ok_or_else(|| fields.wrong(KEY, format!("a list of {count}")))?;
    let kind = |kind: &Value| match kind.as_str() {
        Some("attention" | "full_attention") => Ok(true),
        Some("mamba" | "linear_attention") => Ok(false),
        _ => Err(fields.unsupported(KEY, "supported: mamba, attention")),
    };
    types.iter().map(kind).collect()
}
