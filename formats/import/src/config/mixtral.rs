//! Mixtral: softmax over the selected experts.

use super::keys::{self, Parts};
use super::{Architecture, Family, ModelConfig, Multipliers, RouterConfig};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::MAX_POSITIONS;

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::Mixtral,
    model_type: "mixtral",
    class: "MixtralForCausalLM",
    keys: &["num_local_experts", "router_jitter_noise", "sliding_window"],
    read,
};

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    keys::full_attention(fields)?;
    let mut attention = keys::attention(fields)?;
    attention.sliding_window = fields.size("sliding_window", MAX_POSITIONS)?;
    let mixture = |_| keys::mixture(fields, "num_local_experts", "intermediate_size", None);
    let layers = keys::layers(fields, attention, mixture)?;
    let (router, multipliers) = (RouterConfig::softmax(true), Multipliers::NONE);
    keys::model(
        fields,
        Parts { architecture: FAMILY.architecture, layers, router: Some(router), multipliers },
    )
}
