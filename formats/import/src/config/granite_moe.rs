//! Granite 3.x, with experts and dense: four multipliers, and a softmax over the selected experts.

use super::keys::{self, Parts};
use super::{
    Architecture, AttentionConfig, Family, ModelConfig, Multipliers, RopeConfig, RouterConfig,
    SharedExpert, SharedGate,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::MAX_WIDTH;

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::GraniteMoe,
    model_type: "granitemoe",
    class: "GraniteMoeForCausalLM",
    keys: &[
        "attention_bias",
        "attention_multiplier",
        "embedding_multiplier",
        "logits_scaling",
        "num_local_experts",
        "residual_multiplier",
    ],
    read: |fields| read(fields, Architecture::GraniteMoe, None),
};

/// Granite MoE with a shared expert.
pub(super) const SHARED_FAMILY: Family = Family {
    architecture: Architecture::GraniteMoeShared,
    model_type: "granitemoeshared",
    class: "GraniteMoeSharedForCausalLM",
    keys: &[
        "attention_bias",
        "attention_multiplier",
        "embedding_multiplier",
        "logits_scaling",
        "num_local_experts",
        "residual_multiplier",
        "shared_intermediate_size",
    ],
    read: read_shared,
};

/// Granite without experts.
pub(super) const DENSE_FAMILY: Family = Family {
    architecture: Architecture::Granite,
    model_type: "granite",
    class: "GraniteForCausalLM",
    keys: &[
        "attention_bias",
        "attention_multiplier",
        "embedding_multiplier",
        "logits_scaling",
        "residual_multiplier",
    ],
    read: |fields| {
        let attention = attention(fields)?;
        let layers = keys::layers(fields, attention, |_| keys::dense(fields))?;
        let multipliers = multipliers(fields)?;
        let architecture = Architecture::Granite;
        let parts = Parts { architecture, layers, router: None, multipliers };
        without_residual_multiplier(fields, keys::model(fields, parts)?)
    },
};

fn read_shared(fields: &Fields) -> Result<ModelConfig, ImportError> {
    let width = keys::count(fields, "shared_intermediate_size", MAX_WIDTH)?;
    let shared = width
        .filter(|width| *width > 0)
        .map(|intermediate_size| SharedExpert { intermediate_size, gate: SharedGate::Open });
    let config = read(fields, Architecture::GraniteMoeShared, shared)?;
    // Without a shared expert, the multiplier is merged into the weights of the experts.
    if shared.is_none() { Ok(config) } else { without_residual_multiplier(fields, config) }
}

/// Returns an equivalent model without a factor of the parts' outputs.
pub(super) fn without_residual_multiplier(
    fields: &Fields,
    mut config: ModelConfig,
) -> Result<ModelConfig, ImportError> {
    const RESIDUAL: &str = "residual_multiplier";
    let multiplier = f64::from(config.multipliers.residual);
    if multiplier == 1.0 {
        return Ok(config);
    }
    // The output of each part is multiplied by m. An equivalent model divides the residual stream by m and
    // adds outputs unchanged. Norms give the same result if their epsilon is divided by m².
    let eps = (f64::from(config.rms_norm_eps) / (multiplier * multiplier)) as f32;
    let embedding = (f64::from(config.multipliers.embedding) / multiplier) as f32;
    if multiplier < 0.0 || eps <= 0.0 || eps >= 1.0 {
        let expected =
            "a number above 0, by whose square `rms_norm_eps` divided is between 0 and 1";
        return Err(fields.wrong(RESIDUAL, expected));
    }
    if !embedding.is_normal() {
        let expected = "a number by which `embedding_multiplier` divided is finite and not 0";
        return Err(fields.wrong(RESIDUAL, expected));
    }
    config.rms_norm_eps = eps;
    config.multipliers.embedding = embedding;
    config.multipliers.residual = 1.0;
    Ok(config)
}

fn read(
    fields: &Fields,
    architecture: Architecture,
    shared: Option<SharedExpert>,
) -> Result<ModelConfig, ImportError> {
    let attention = attention(fields)?;
    let mixture = |_| keys::mixture(fields, "num_local_experts", "intermediate_size", shared);
    let layers = keys::layers(fields, attention, mixture)?;
    let multipliers = multipliers(fields)?;
    let router = RouterConfig::softmax(true);
    keys::model(fields, Parts { architecture, layers, router: Some(router), multipliers })
}

fn attention(fields: &Fields) -> Result<AttentionConfig, ImportError> {
    keys::full_attention(fields)?;
    attention_of(fields, keys::rope)
}

/// Reads the attention of layers that have it, with the given reader of RoPE.
pub(super) fn attention_of(
    fields: &Fields,
    rope: fn(&Fields, usize) -> Result<RopeConfig, ImportError>,
) -> Result<AttentionConfig, ImportError> {
    keys::silu(fields)?;
    let mut attention = keys::attention_with(fields, rope)?;
    attention.bias = keys::attention_bias(fields)?;
    attention.scale = keys::factor(fields, "attention_multiplier")?;
    Ok(attention)
}

pub(super) fn multipliers(fields: &Fields) -> Result<Multipliers, ImportError> {
    Ok(Multipliers {
        embedding: keys::factor(fields, "embedding_multiplier")?,
        residual: keys::factor(fields, "residual_multiplier")?,
        logits: 1.0 / keys::factor(fields, "logits_scaling")?,
    })
}
