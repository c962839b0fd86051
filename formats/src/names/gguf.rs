//! llama.cpp's names, which are nearly the same in all families.

use super::{FloatSource, Naming, Runs, TensorSlice, qwen3_next};
use crate::config::{Architecture, ModelConfig, TokenMixer};
use crate::{FloatId, FloatKind, MatrixId, MatrixKind};

/// The names in a GGUF file of a family.
pub fn naming(architecture: Architecture) -> Naming {
    let matrix = match architecture {
        architecture if turns_adjacent(architecture) => by_halves,
        Architecture::Qwen3Next => qwen3_next::in_gguf,
        _ => matrix,
    };
    Naming { matrix, float, is_redundant }
}

/// Whether llama.cpp's RoPE turns neighbours of a head in this family, where the published weights
/// pair the halves of a head: it stores the rows of queries and keys in another order.
pub(crate) fn turns_adjacent(architecture: Architecture) -> bool {
    matches!(architecture, Architecture::Mixtral | Architecture::GraniteMoe)
}

/// The tensors whose rows are in such an order, with their numbers of heads.
pub(crate) fn split_into_heads(config: &ModelConfig) -> Vec<(String, usize)> {
    if !turns_adjacent(config.architecture) {
        return Vec::new();
    }
    let mut tensors = Vec::new();
    for (layer, layer_config) in config.layers.iter().enumerate() {
        let TokenMixer::Attention(attention) = layer_config.mixer else { continue };
        tensors.push((format!("blk.{layer}.attn_q.weight"), attention.num_attention_heads));
        tensors.push((format!("blk.{layer}.attn_k.weight"), attention.num_key_value_heads));
    }
    tensors
}

pub(super) fn matrix(config: &ModelConfig, id: MatrixId) -> Vec<TensorSlice> {
    slice(config, id).into_iter().collect()
}

fn slice(config: &ModelConfig, id: MatrixId) -> Option<TensorSlice> {
    let Some(layer) = id.layer else {
        return match id.kind {
            MatrixKind::Embedding => Some(TensorSlice::whole("token_embd.weight")),
            MatrixKind::Head => Some(TensorSlice::whole("output.weight")),
            _ => None,
        };
    };
    let part = match id.kind {
        MatrixKind::Query => "attn_q",
        MatrixKind::Key => "attn_k",
        MatrixKind::Value => "attn_v",
        MatrixKind::Output => "attn_output",
        MatrixKind::Gate => "ffn_gate",
        MatrixKind::Up => "ffn_up",
        MatrixKind::Down => "ffn_down",
        _ => return None,
    };
    let feed_forward = matches!(id.kind, MatrixKind::Gate | MatrixKind::Up | MatrixKind::Down);
    let owner = match id.expert {
        Some(_) if feed_forward => "_exps",
        Some(_) => return None,
        None if feed_forward && config.is_mixture(layer) => "_shexp",
        None => "",
    };
    let index = id.expert.map(usize::try_from).transpose().ok()?;
    let name = format!("blk.{layer}.{part}{owner}.weight");
    Some(TensorSlice { index, ..TensorSlice::whole(name) })
}

/// Queries and keys head by head, of each head first the even rows, then the odd ones.
fn by_halves(config: &ModelConfig, id: MatrixId) -> Vec<TensorSlice> {
    let layer = id.layer.and_then(|layer| usize::try_from(layer).ok());
    let mixer = layer.and_then(|layer| config.layers.get(layer)).map(|layer| layer.mixer);
    let heads = match (mixer, id.kind) {
        (Some(TokenMixer::Attention(attention)), MatrixKind::Query) => {
            attention.num_attention_heads
        }
        (Some(TokenMixer::Attention(attention)), MatrixKind::Key) => attention.num_key_value_heads,
        _ => return matrix(config, id),
    };
    let Some(whole) = slice(config, id) else { return Vec::new() };
    let half = |index: usize, start: usize| {
        let rows = Runs { start, length: 1, stride: 2 };
        TensorSlice { index: Some(index), rows, ..whole.clone() }
    };
    (0..heads).flat_map(|head| [half(head, 0), half(head, 1)]).collect()
}

fn float(config: &ModelConfig, id: FloatId) -> Option<FloatSource> {
    let Some(layer) = id.layer else {
        return (id.kind == FloatKind::FinalNorm).then(|| FloatSource::kept("output_norm.weight"));
    };
    let part = match id.kind {
        FloatKind::AttentionNorm => "attn_norm.weight",
        FloatKind::FeedForwardNorm
            if matches!(config.architecture, Architecture::Qwen3Next | Architecture::GptOss) =>
        {
            "post_attention_norm.weight"
        }
        FloatKind::FeedForwardNorm => "ffn_norm.weight",
        FloatKind::QueryNorm => "attn_q_norm.weight",
        FloatKind::KeyNorm => "attn_k_norm.weight",
        FloatKind::Router => "ffn_gate_inp.weight",
        FloatKind::QueryBias => "attn_q.bias",
        FloatKind::KeyBias => "attn_k.bias",
        FloatKind::ValueBias => "attn_v.bias",
        FloatKind::OutputBias => "attn_output.bias",
        FloatKind::SharedGate => "ffn_gate_inp_shexp.weight",
        FloatKind::RouterBias => "exp_probs_b.bias",
        FloatKind::RouterLogitBias => "ffn_gate_inp.bias",
        FloatKind::Sinks => "attn_sinks.weight",
        FloatKind::ExpertGateBias => "ffn_gate_exps.bias",
        FloatKind::ExpertUpBias => "ffn_up_exps.bias",
        FloatKind::ExpertDownBias => "ffn_down_exps.bias",
        FloatKind::DeltaConv => "ssm_conv1d.weight",
        // Already the negative of its exponential.
        FloatKind::DeltaDecay => "ssm_a",
        FloatKind::DeltaTimeBias => "ssm_dt.bias",
        FloatKind::DeltaNorm => "ssm_norm.weight",
        _ => return None,
    };
    Some(FloatSource::kept(format!("blk.{layer}.{part}")))
}

/// Factors that follow from the configuration, and layers that only predict further tokens.
fn is_redundant(config: &ModelConfig, name: &str) -> bool {
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok());
    layer.is_some_and(|layer: usize| layer >= config.num_hidden_layers)
}
