//! OLMoE: norms over all heads together, expert weights without renormalization.

use super::keys::{self, Parts};
use super::{Architecture, Family, ModelConfig, Multipliers, QkNorm, RouterConfig};
use crate::ImportError;
use crate::json::Fields;

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::Olmoe,
    model_type: "olmoe",
    class: "OlmoeForCausalLM",
    keys: &["attention_bias", "clip_qkv", "norm_topk_prob", "num_experts"],
    read,
};

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    keys::full_attention(fields)?;
    if fields.get("clip_qkv").is_some() {
        return Err(fields.unsupported("clip_qkv", "supported: null"));
    }
    let mut attention = keys::attention(fields)?;
    attention.qk_norm = QkNorm::FullWidth;
    attention.bias = keys::attention_bias(fields)?;
    let mixture = |_| keys::mixture(fields, "num_experts", "intermediate_size", None);
    let layers = keys::layers(fields, attention, mixture)?;
    let router = RouterConfig::softmax(fields.boolean("norm_topk_prob")?.unwrap_or(false));
    let multipliers = Multipliers::NONE;
    keys::model(
        fields,
        Parts { architecture: FAMILY.architecture, layers, router: Some(router), multipliers },
    )
}
