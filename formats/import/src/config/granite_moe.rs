//! Granite 3.x MoE: four multipliers, softmax over the chosen experts.

use super::keys::{self, Parts};
use super::{Architecture, Family, ModelConfig, Multipliers, RouterConfig};
use crate::ImportError;
use crate::json::Fields;

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
    read,
};

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    keys::full_attention(fields)?;
    let mut attention = keys::attention(fields)?;
    attention.bias = keys::attention_bias(fields)?;
    attention.scale = keys::factor(fields, "attention_multiplier")?;
    let mixture = |_| keys::mixture(fields, "num_local_experts", "intermediate_size", None);
    let layers = keys::layers(fields, attention, mixture)?;
    let multipliers = Multipliers {
        embedding: keys::factor(fields, "embedding_multiplier")?,
        residual: keys::factor(fields, "residual_multiplier")?,
        logits: 1.0 / keys::factor(fields, "logits_scaling")?,
    };
    let router = RouterConfig::softmax(true);
    keys::model(fields, Parts { architecture: FAMILY.architecture, layers, router, multipliers })
}
