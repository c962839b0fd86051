//! Trinity (Arcee): gated attention with norms around each part. Layers with a sliding window rotate, the
//! others have no RoPE. The first layers are dense, the others mixtures with sigmoid scores.

use super::keys::{self, Parts};
use super::{
    Architecture, AttentionConfig, BlockNorms, ExpertVector, Family, LayerConfig, ModelConfig,
    Multipliers, OutputGate, QkNorm, RopeConfig, RouterConfig, RouterScore, TokenMixer, routed,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH};

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::Afmoe,
    model_type: "afmoe",
    class: "AfmoeForCausalLM",
    keys: &[
        "attention_bias",
        "auto_map",
        "global_attn_every_n_layers",
        "load_balance_coeff",
        "moe_intermediate_size",
        "mup_enabled",
        "n_group",
        "norm_topk_prob",
        "num_dense_layers",
        "num_expert_groups",
        "num_experts",
        "num_limited_groups",
        "num_shared_experts",
        "route_norm",
        "route_scale",
        "score_func",
        "sliding_window",
        "topk_group",
        "use_grouped_mm",
    ],
    read,
};

const NAMES: routed::Names = routed::Names { experts: "num_experts", shared: "num_shared_experts" };

fn read(fields: &Fields) -> Result<ModelConfig, ImportError> {
    keys::silu(fields)?;
    refuse_options(fields)?;
    let mut local = keys::attention(fields)?;
    local.qk_norm = QkNorm::PerHead;
    local.output_gate = OutputGate::Sigmoid;
    // Default: 0, if the table has no default.
    let dense = keys::count(fields, "num_dense_layers", MAX_LAYERS)?.unwrap_or(0);
    let layer = |(layer, window): (usize, Option<usize>)| {
        let rope = if window.is_some() { local.rope } else { RopeConfig::NONE };
        let attention = AttentionConfig { sliding_window: window, rope, ..local };
        let feed_forward = match layer < dense {
            true => keys::dense(fields)?,
            false => routed::mixture_of(fields, &NAMES)?,
        };
        Ok(LayerConfig { mixer: TokenMixer::Attention(attention), feed_forward })
    };
    let layers = windows(fields)?.into_iter().enumerate().map(layer);
    let layers = layers.collect::<Result<Vec<_>, ImportError>>()?;
    let router = RouterConfig {
        score: RouterScore::Sigmoid,
        scale: keys::factor(fields, "route_scale")?,
        selection_bias: ExpertVector::Present,
        ..RouterConfig::softmax(true)
    };
    let hidden_size = fields.required_size("hidden_size", MAX_WIDTH)?;
    let multipliers = match fields.boolean("mup_enabled")? {
        Some(true) => Multipliers { embedding: (hidden_size as f32).sqrt(), ..Multipliers::NONE },
        _ => Multipliers::NONE,
    };
    let architecture = FAMILY.architecture;
    let parts = Parts { architecture, layers, router: Some(router), multipliers };
    let mut config = keys::model(fields, parts)?;
    config.block_norms = BlockNorms::Around;
    Ok(config)
}

/// Returns the windows from `layer_types`, or else all but the last layer of each
/// `global_attn_every_n_layers`. transformers needs a window even if no layer has it.
fn windows(fields: &Fields) -> Result<Vec<Option<usize>>, ImportError> {
    const WINDOW: &str = "sliding_window";
    if fields.size(WINDOW, MAX_POSITIONS)?.is_none() {
        return Err(fields.wrong(WINDOW, "a number of positions"));
    }
    let every = fields.required_size("global_attn_every_n_layers", MAX_LAYERS)?;
    keys::windows(fields, |layer| !(layer + 1).is_multiple_of(every))
}

/// Rejects options of the published files that transformers does not read, other than their published values,
/// and biases, which the gate does not have.
fn refuse_options(fields: &Fields) -> Result<(), ImportError> {
    if fields.boolean("attention_bias")? == Some(true) {
        return Err(fields.unsupported("attention_bias", "supported: false"));
    }
    for key in ["route_norm", "norm_topk_prob"] {
        if fields.boolean(key)? == Some(false) {
            return Err(fields.unsupported(key, "supported: true"));
        }
    }
    if fields.text("score_func")?.is_some_and(|found| found != "sigmoid") {
        return Err(fields.unsupported("score_func", "supported: sigmoid"));
    }
    for key in ["n_group", "topk_group", "num_expert_groups", "num_limited_groups"] {
        if fields.number(key)?.is_some_and(|found| found != 1.0) {
            return Err(fields.unsupported(key, "supported: 1"));
        }
    }
    Ok(())
}
