//! Tensor names of llama.cpp, which are nearly the same for all families.

use super::{FloatSource, Naming, Order, Runs, TensorSlice, deepseek, nemotron_h, qwen3_next};
use crate::config::{Architecture, FeedForward, LatentConfig, ModelConfig, TokenMixer};
use nestling_formats::{FloatId, FloatKind, MatrixId, MatrixKind};

/// Name of the tensor with the divisors of proportional RoPE, one per pair.
pub(crate) const FREQUENCY_FACTORS: &str = "rope_freqs.weight";

/// Returns the tensor names of a family in GGUF files.
pub fn naming(architecture: Architecture) -> Naming {
    let matrix = match architecture {
        architecture if turns_adjacent(architecture) => by_halves,
        Architecture::DeepseekV2
        | Architecture::DeepseekV3
        | Architecture::DeepseekV32
        | Architecture::GlmMoeDsa
        | Architecture::KimiK2
        | Architecture::Glm4MoeLite => latent,
        Architecture::Qwen3Next | Architecture::Qwen35Moe => {
            |config: &_, id| qwen3_next::in_gguf(config, id).unwrap_or_else(|| matrix(config, id))
        }
        _ => matrix,
    };
    Naming { matrix, alternative: Some(joined), float, is_redundant }
}

/// Returns true if llama.cpp rotates adjacent elements of a head, whereas the published weights pair the
/// halves. GGUF files of such families have permuted query and key rows, those of Nemotron-H too, which turns nothing.
pub(crate) fn turns_adjacent(architecture: Architecture) -> bool {
    use Architecture::{
        Granite, GraniteMoe, GraniteMoeHybrid, GraniteMoeShared, Llama, Mistral, Mixtral, NemotronH,
    };
    matches!(
        architecture,
        Llama
            | Mistral
            | Mixtral
            | Granite
            | GraniteMoe
            | GraniteMoeShared
            | GraniteMoeHybrid
            | NemotronH
    )
}

/// Returns the tensors with permuted rows, with their numbers of heads.
pub(crate) fn split_into_heads(config: &ModelConfig) -> Vec<(String, usize)> {
    if !turns_adjacent(config.architecture) {
        return Vec::new();
    }
    let mut tensors = Vec::new();
    for (layer, layer_config) in config.layers.iter().enumerate() {
        let TokenMixer::Attention(attention) = layer_config.mixer else { continue };
        let block = nemotron_h::blocks(config, layer);
        tensors.push((format!("blk.{block}.attn_q.weight"), attention.num_attention_heads));
        tensors.push((format!("blk.{block}.attn_k.weight"), attention.num_key_value_heads));
    }
    tensors
}

fn matrix(config: &ModelConfig, id: MatrixId) -> Vec<TensorSlice> {
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
        MatrixKind::QueryGate => "attn_gate",
        MatrixKind::QueryDown => "attn_q_a",
        MatrixKind::QueryUp => "attn_q_b",
        MatrixKind::LatentDown => "attn_kv_a_mqa",
        MatrixKind::KeyUp => "attn_k_b",
        MatrixKind::ValueUp => "attn_v_b",
        MatrixKind::Key => "attn_k",
        MatrixKind::Value => "attn_v",
        MatrixKind::Output => "attn_output",
        MatrixKind::ShortConvIn => "shortconv.in_proj",
        MatrixKind::ShortConvOut => "shortconv.out_proj",
        MatrixKind::Mamba2In => "ssm_in",
        MatrixKind::Mamba2Out => "ssm_out",
        MatrixKind::Gate => "ffn_gate",
        MatrixKind::Up => "ffn_up",
        MatrixKind::Down => "ffn_down",
        _ => return None,
    };
    let feed_forward = nemotron_h::is_of_feed_forward(id.kind);
    let owner = match id.expert {
        Some(_) if feed_forward => "_exps",
        Some(_) => return None,
        // Gemma's dense part next to the experts has no suffix.
        None if config.architecture == Architecture::Gemma4 => "",
        None if feed_forward && config.is_mixture(layer) => "_shexp",
        None => "",
    };
    let index = id.expert.map(usize::try_from).transpose().ok()?;
    let block = nemotron_h::block(config, layer, feed_forward)?;
    let name = format!("blk.{block}.{part}{owner}.weight");
    Some(TensorSlice { index, ..TensorSlice::whole(name) })
}

/// Returns queries and keys head by head: of each head first the even rows, then the odd ones.
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

/// Returns the order of a bias of queries or keys whose rows llama.cpp permutes as [`by_halves`] describes.
fn bias_by_halves(config: &ModelConfig, id: FloatId) -> Option<Order> {
    let layer = id.layer.and_then(|layer| usize::try_from(layer).ok())?;
    let TokenMixer::Attention(attention) = config.layers.get(layer)?.mixer else { return None };
    let heads = match id.kind {
        FloatKind::QueryBias => attention.num_attention_heads,
        FloatKind::KeyBias => attention.num_key_value_heads,
        _ => return None,
    };
    if !turns_adjacent(config.architecture) {
        return None;
    }
    let pairs = attention.head_dim / 2;
    let of_head = |head: usize| {
        let at = move |half: usize, pair: usize| head * 2 * pairs + 2 * pair + half;
        (0..2).flat_map(move |half| (0..pairs).map(move |pair| Runs::range(at(half, pair), 1)))
    };
    Some(Order::of((0..heads).flat_map(of_head)))
}

/// Returns the up-projections of keys and values, one slice per head. Keys are already transposed in GGUF
/// files.
fn latent(config: &ModelConfig, id: MatrixId) -> Vec<TensorSlice> {
    match (id.kind, latent_config(config, id), slice(config, id)) {
        (MatrixKind::KeyUp | MatrixKind::ValueUp, Some(latent), Some(whole)) => {
            let head = |head| TensorSlice { index: Some(head), ..whole.clone() };
            (0..latent.num_attention_heads).map(head).collect()
        }
        _ => matrix(config, id),
    }
}

/// Returns the slices of combined tensors that some files have. Converters can store gate rows above up rows
/// of experts. Older converters stored keys and values of latents interleaved by head, as published.
fn joined(config: &ModelConfig, id: MatrixId) -> Vec<TensorSlice> {
    let Some(layer) = id.layer else { return Vec::new() };
    let at = |part: &str| format!("blk.{layer}.{part}.weight");
    match (id.kind, latent_config(config, id), expert(config, id)) {
        (MatrixKind::KeyUp, Some(latent), _) => deepseek::key_up(latent, &at("attn_kv_b")),
        (MatrixKind::ValueUp, Some(latent), _) => deepseek::value_up(latent, &at("attn_kv_b")),
        (kind @ (MatrixKind::Gate | MatrixKind::Up), _, Some((index, width))) => {
            let start = if kind == MatrixKind::Gate { 0 } else { width };
            let whole = TensorSlice::whole(at("ffn_gate_up_exps"));
            vec![TensorSlice { index: Some(index), rows: Runs::range(start, width), ..whole }]
        }
        (kind, None, None) => in_qkv(config, layer, kind).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// Returns a slice of the combined tensor of a layer: queries, keys and values, stacked.
fn in_qkv(config: &ModelConfig, layer: u32, kind: MatrixKind) -> Option<TensorSlice> {
    let TokenMixer::Attention(attention) = config.layers.get(usize::try_from(layer).ok()?)?.mixer
    else {
        return None;
    };
    let [queries, keys] = [attention.num_attention_heads, attention.num_key_value_heads]
        .map(|heads| heads * attention.head_dim);
    let rows = match kind {
        MatrixKind::Query => Runs::range(0, queries),
        MatrixKind::Key => Runs::range(queries, keys),
        MatrixKind::Value => Runs::range(queries + keys, keys),
        _ => return None,
    };
    let block = nemotron_h::block(config, layer, false)?;
    Some(TensorSlice { rows, ..TensorSlice::whole(format!("blk.{block}.attn_qkv.weight")) })
}

/// Returns the index of an expert and its inner width.
fn expert(config: &ModelConfig, id: MatrixId) -> Option<(usize, usize)> {
    let index = usize::try_from(id.expert?).ok()?;
    let layer = id.layer.and_then(|layer| usize::try_from(layer).ok())?;
    match config.layers.get(layer)?.feed_forward {
        FeedForward::Moe { moe_intermediate_size, .. } => Some((index, moe_intermediate_size)),
        FeedForward::Absent | FeedForward::Dense { .. } => None,
    }
}

fn latent_config(config: &ModelConfig, id: MatrixId) -> Option<&LatentConfig> {
    let layer = id.layer.and_then(|layer| usize::try_from(layer).ok())?;
    match &config.layers.get(layer)?.mixer {
        TokenMixer::Latent(latent) => Some(latent),
        _ => None,
    }
}

fn float(config: &ModelConfig, id: FloatId) -> Option<FloatSource> {
    let Some(layer) = id.layer else {
        let name = match config.architecture {
            // llama.cpp gave this norm the wrong name, and published files keep it.
            Architecture::Lfm2 | Architecture::Lfm2Moe => "token_embd_norm.weight",
            _ => "output_norm.weight",
        };
        return (id.kind == FloatKind::FinalNorm).then(|| FloatSource::kept(name));
    };
    let part = match id.kind {
        FloatKind::AttentionNorm => "attn_norm.weight",
        FloatKind::FeedForwardNorm if config.architecture == Architecture::NemotronH => {
            "attn_norm.weight"
        }
        FloatKind::FeedForwardNorm
            if matches!(
                config.architecture,
                Architecture::Qwen3Next
                    | Architecture::Qwen35Moe
                    | Architecture::GptOss
                    | Architecture::Glm4Moe
                    | Architecture::SolarOpen
            ) =>
        {
            "post_attention_norm.weight"
        }
        FloatKind::FeedForwardNorm => "ffn_norm.weight",
        FloatKind::PostAttentionNorm => "post_attention_norm.weight",
        FloatKind::PostFeedForwardNorm => "post_ffw_norm.weight",
        FloatKind::PostSharedNorm => "post_ffw_norm_1.weight",
        FloatKind::PreExpertNorm => "pre_ffw_norm_2.weight",
        FloatKind::PostExpertNorm => "post_ffw_norm_2.weight",
        FloatKind::RouterInputScale => "ffn_gate_inp.scale",
        FloatKind::ExpertScale => "ffn_down_exps.scale",
        FloatKind::LayerScalar => "layer_output_scale.weight",
        FloatKind::QueryNorm => "attn_q_norm.weight",
        FloatKind::KeyNorm => "attn_k_norm.weight",
        FloatKind::QueryLatentNorm => "attn_q_a_norm.weight",
        FloatKind::LatentNorm => "attn_kv_a_norm.weight",
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
        // The file already holds the negative of the exponential.
        FloatKind::DeltaDecay => "ssm_a",
        FloatKind::DeltaTimeBias => "ssm_dt.bias",
        FloatKind::DeltaNorm => "ssm_norm.weight",
        FloatKind::ShortConvTaps => "shortconv.conv.weight",
        FloatKind::Mamba2Conv => "ssm_conv1d.weight",
        FloatKind::Mamba2ConvBias => "ssm_conv1d.bias",
        FloatKind::Mamba2Decay => "ssm_a",
        FloatKind::Mamba2TimeBias => "ssm_dt.bias",
        FloatKind::Mamba2Skip => "ssm_d",
        FloatKind::Mamba2Norm => "ssm_norm.weight",
        _ => return None,
    };
    let rows = bias_by_halves(config, id).unwrap_or_else(|| qwen3_next::float_rows(config, id));
    let block = nemotron_h::block(config, layer, nemotron_h::is_float_of_feed_forward(id.kind))?;
    Some(FloatSource { rows, ..FloatSource::kept(format!("blk.{block}.{part}")) })
}

/// Returns true for factors that follow from the configuration, and for multi-token prediction layers.
fn is_redundant(config: &ModelConfig, name: &str) -> bool {
    let divided = [Architecture::Gemma4, Architecture::Llama].contains(&config.architecture);
    if divided && name == FREQUENCY_FACTORS {
        return true;
    }
    // The indexer selects all positions of the supported contexts.
    let sparse = [Architecture::DeepseekV32, Architecture::GlmMoeDsa];
    if sparse.contains(&config.architecture) && name.contains(".indexer.") {
        return true;
    }
    // Activation scales for NVFP4 weights are unused, because activations are not quantized with them.
    if name.ends_with(".input_scale") {
        return true;
    }
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok());
    layer.is_some_and(|layer: usize| layer >= nemotron_h::blocks(config, config.num_hidden_layers))
}
