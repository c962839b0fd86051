//! DeepSeek-V3.2 and GLM-5: DeepSeek-V3 with sparse attention. An indexer selects the positions that a token
//! sees. It selects all of them up to `index_topk`, where the result is that of dense attention. Contexts are
//! limited to that length, and the indexer is not computed.

use serde_json::Value;

use super::keys::{self, Parts};
use super::{
    Architecture, ContextLimit, Family, ModelConfig, Multipliers, RopePairs, latent, routed,
};
use crate::ImportError;
use crate::json::Fields;
use crate::limits::{MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS};

pub(super) const FAMILY: Family = Family {
    architecture: Architecture::DeepseekV32,
    model_type: "deepseek_v32",
    class: "DeepseekV32ForCausalLM",
    keys: &[
        "attention_bias",
        "auto_map",
        "ep_size",
        "first_k_dense_replace",
        "index_head_dim",
        "index_n_heads",
        "index_topk",
        "kv_lora_rank",
        "mlp_layer_types",
        "moe_intermediate_size",
        "moe_layer_freq",
        "n_group",
        "n_routed_experts",
        "n_shared_experts",
        "norm_topk_prob",
        "num_nextn_predict_layers",
        "pretraining_tp",
        "q_lora_rank",
        "qk_head_dim",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "rope_interleave",
        "routed_scaling_factor",
        "scoring_func",
        "topk_group",
        "topk_method",
        "v_head_dim",
    ],
    read: |fields| read(fields, Architecture::DeepseekV32),
};

/// GLM-5, whose layers may share an indexer.
pub(super) const GLM_FAMILY: Family = Family {
    architecture: Architecture::GlmMoeDsa,
    model_type: "glm_moe_dsa",
    class: "GlmMoeDsaForCausalLM",
    keys: &[
        "attention_bias",
        "ep_size",
        "first_k_dense_replace",
        "index_head_dim",
        "index_n_heads",
        "index_share_for_mtp_iteration",
        "index_skip_topk_offset",
        "index_topk",
        "index_topk_freq",
        "index_topk_pattern",
        "indexer_rope_interleave",
        "indexer_types",
        "kv_lora_rank",
        "mlp_layer_types",
        "moe_intermediate_size",
        "moe_layer_freq",
        "moe_router_dtype",
        "n_group",
        "n_routed_experts",
        "n_shared_experts",
        "norm_topk_prob",
        "num_nextn_predict_layers",
        "pretraining_tp",
        "q_lora_rank",
        "qk_head_dim",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "rope_interleave",
        "routed_scaling_factor",
        "scoring_func",
        "topk_group",
        "topk_method",
        "v_head_dim",
    ],
    read: |fields| {
        check_indexer_types(fields)?;
        if fields.text("moe_router_dtype")?.is_some_and(|found| found != "float32") {
            return Err(fields.unsupported("moe_router_dtype", "supported: float32"));
        }
        read(fields, Architecture::GlmMoeDsa)
    },
};

/// Name of the kind of all layers.
const KIND: &str = "indexed_attention";

fn read(fields: &Fields, architecture: Architecture) -> Result<ModelConfig, ImportError> {
    const QUERIES: &str = "q_lora_rank";
    const ADJACENT: &str = "rope_interleave";
    keys::silu(fields)?;
    // transformers ignores the key.
    if fields.boolean(ADJACENT)? == Some(false) {
        return Err(fields.unsupported(ADJACENT, "supported: true"));
    }
    // transformers overwrites `head_dim` with `qk_rope_head_dim`.
    let attention = latent::attention_of_parts(fields, RopePairs::Adjacent)?;
    if attention.q_lora_rank.is_none() {
        return Err(fields.wrong(QUERIES, "the width of the queries' latents"));
    }
    let selected = selected_positions(fields, attention.qk_rope_head_dim)?;
    let dense = routed::dense_by_layer(fields)?;
    let is_dense = |layer| dense.get(layer) == Some(&true);
    let layers = latent::layers_of_kind(fields, KIND, attention, is_dense)?;
    let router = Some(routed::sigmoid_router(fields)?);
    let multipliers = Multipliers::NONE;
    let mut config = keys::model(fields, Parts { architecture, layers, router, multipliers })?;
    let trained = config.max_position_embeddings;
    if selected < trained {
        config.max_position_embeddings = selected;
        config.context_limit = ContextLimit::Selection { trained };
    }
    Ok(config)
}

/// Checks the sizes of the indexer, and returns the number of positions that it selects.
fn selected_positions(fields: &Fields, rope_dim: usize) -> Result<usize, ImportError> {
    const WIDTH: &str = "index_head_dim";
    fields.required_size("index_n_heads", MAX_HEADS)?;
    if fields.required_size(WIDTH, MAX_HEAD_DIM)? < rope_dim {
        return Err(fields.wrong(WIDTH, format!("at least `qk_rope_head_dim` = {rope_dim}")));
    }
    fields.required_size("index_topk", MAX_POSITIONS)
}

/// Checks which layers share the indexer of an earlier layer. The first layer must have its own.
fn check_indexer_types(fields: &Fields) -> Result<(), ImportError> {
    for key in ["index_topk_freq", "index_skip_topk_offset"] {
        fields.refuse_null(key)?;
        fields.size(key, MAX_LAYERS)?;
    }
    let count = fields.required_size("num_hidden_layers", MAX_LAYERS)?;
    for key in ["indexer_types", "index_topk_pattern"] {
        let owned: Option<Vec<bool>> = match fields.get(key) {
            None => continue,
            Some(Value::Array(types)) => types.iter().map(owns_indexer).collect(),
            Some(Value::String(pattern)) if key == "index_topk_pattern" => {
                let owned = |kind| match kind {
                    'F' => Some(true),
                    'S' => Some(false),
                    _ => None,
                };
                pattern.chars().map(owned).collect()
            }
            Some(_) => None,
        };
        if !owned.is_some_and(|owned| owned.len() == count && owned.first() == Some(&true)) {
            return Err(fields.wrong(key, format!("{count} times full or shared, full first")));
        }
    }
    Ok(())
}

fn owns_indexer(kind: &Value) -> Option<bool> {
    match kind.as_str() {
        Some("full") => Some(true),
        Some("shared") => Some(false),
        _ => None,
    }
}
