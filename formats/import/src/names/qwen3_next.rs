//! Tensor names of Qwen3-Next and of the text part of Qwen3.5-MoE: DeltaNet and gated attention, with norm
//! weights stored relative to 1.
//!
//! Qwen3-Next has one tensor for queries, keys, values and gates, and one for beta and alpha. Both consist of
//! one block per key head. Qwen3.5-MoE has separate tensors, and one tensor for all experts of a layer.

use super::{
    FloatChange, FloatSource, Naming, Order, Runs, TensorSlice, attention_matrix, is_redundant,
    layer_float,
};
use crate::config::{
    Architecture, DeltaNetConfig, FeedForward, LayerConfig, ModelConfig, TokenMixer,
};
use nestling_formats::{FloatId, FloatKind, MatrixId, MatrixKind};

pub(super) const NAMING: Naming = Naming {
    matrix: |config, id| matrix(config, id, &NEXT),
    alternative: None,
    float: |config, id| float(config, id, NEXT.prefix),
    is_redundant: |config, name| is_redundant(config, name) || name.starts_with("mtp."),
};

/// Names of Qwen3.5-MoE. Models that were not loaded from fused experts are saved with one tensor per expert.
pub(super) const WITH_IMAGES: Naming = Naming {
    matrix: |config, id| matrix(config, id, &WHOLE),
    alternative: Some(|config, id| matrix(config, id, &Layout { fused: false, ..WHOLE })),
    float: |config, id| float(config, id, WHOLE.prefix),
    is_redundant: |config, name| {
        is_redundant(config, name) || name.starts_with("mtp.") || name.starts_with("model.visual.")
    },
};

/// Names of Qwen3.5-MoE's text part in a separate checkpoint.
pub(super) const TEXT_ALONE: Naming = Naming {
    matrix: |config, id| matrix(config, id, &TEXT),
    alternative: Some(|config, id| matrix(config, id, &Layout { fused: false, ..TEXT })),
    ..NAMING
};

/// Tensor that identifies a text part saved under the names of the whole model.
pub(super) const OF_WHOLE: &str = "model.language_model.embed_tokens.weight";

/// Tensor layout of a checkpoint.
struct Layout {
    prefix: &'static str,
    delta_parts: DeltaParts,
    /// True if all experts of a layer are in one tensor.
    fused: bool,
}

const NEXT: Layout = Layout { prefix: "model.", delta_parts: in_blocks, fused: false };

const WHOLE: Layout = Layout { prefix: "model.language_model.", delta_parts: apart, fused: true };

const TEXT: Layout = Layout { prefix: "model.", ..WHOLE };

/// Function that returns the sources of a DeltaNet matrix: tensor names within the layer's `linear_attn`, and
/// their rows.
type DeltaParts = fn(&DeltaNetConfig, MatrixKind) -> Vec<(&'static str, Runs)>;

fn matrix(config: &ModelConfig, id: MatrixId, layout: &Layout) -> Vec<TensorSlice> {
    let Layout { prefix, delta_parts, fused } = *layout;
    let Some(layer) = id.layer else {
        return match id {
            MatrixId { kind: MatrixKind::Embedding, expert: None, .. } => {
                vec![TensorSlice::whole(format!("{prefix}embed_tokens.weight"))]
            }
            MatrixId { kind: MatrixKind::Head, expert: None, .. } => {
                vec![TensorSlice::whole("lm_head.weight")]
            }
            _ => Vec::new(),
        };
    };
    let found = usize::try_from(layer).ok().and_then(|layer| config.layers.get(layer));
    let Some(LayerConfig { mixer, feed_forward }) = found else { return Vec::new() };
    let within = format!("{prefix}layers.{layer}.");
    match (id.kind, id.expert, mixer) {
        (MatrixKind::Gate | MatrixKind::Up | MatrixKind::Down, ..) => {
            feed_forward_matrix(id, &within, feed_forward, fused).into_iter().collect()
        }
        (kind, None, TokenMixer::DeltaNet(delta_net)) => {
            let parts = delta_parts(delta_net, kind).into_iter();
            let slice = |(part, rows): (&str, Runs)| TensorSlice {
                rows,
                ..TensorSlice::whole(format!("{within}linear_attn.{part}.weight"))
            };
            parts.map(slice).collect()
        }
        (kind, None, TokenMixer::Attention(attention)) => {
            let (kind, rows) = with_gate(kind, attention.head_dim);
            let part = attention_matrix(kind);
            let whole = part.map(|part| TensorSlice::whole(format!("{within}{part}")));
            whole.map(|whole| TensorSlice { rows, ..whole }).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the rows of queries or gates in a combined projection. The projection has the query and then the
/// gate of each head.
fn with_gate(kind: MatrixKind, head_dim: usize) -> (MatrixKind, Runs) {
    let of_query = |start| Runs { start, length: head_dim, stride: 2 * head_dim };
    match kind {
        MatrixKind::Query => (MatrixKind::Query, of_query(0)),
        MatrixKind::QueryGate => (MatrixKind::Query, of_query(head_dim)),
        kind => (kind, Runs::ALL),
    }
}

/// Returns the slices of a matrix in a GGUF file, or `None` for a matrix with a common name. Files of
/// Qwen3-Next keep the blocks of beta and alpha. Files of Qwen3.5-MoE have permuted value heads.
pub(super) fn in_gguf(config: &ModelConfig, id: MatrixId) -> Option<Vec<TensorSlice>> {
    let found = id.layer.and_then(|layer| config.layers.get(usize::try_from(layer).ok()?));
    let (Some(layer), Some(found), None) = (id.layer, found, id.expert) else {
        return None;
    };
    let part = |part: &str| TensorSlice::whole(format!("blk.{layer}.{part}.weight"));
    let within = |name: &str, rows| TensorSlice { rows, ..part(name) };
    let delta_net = match found.mixer {
        TokenMixer::Attention(attention) => {
            let is_query = matches!(id.kind, MatrixKind::Query | MatrixKind::QueryGate);
            let (_, rows) = with_gate(id.kind, attention.head_dim);
            return is_query.then(|| vec![within("attn_q", rows)]);
        }
        TokenMixer::DeltaNet(delta_net) => delta_net,
        TokenMixer::Latent(_) | TokenMixer::ShortConv(_) | TokenMixer::Mamba2(_) => {
            return Some(Vec::new());
        }
    };
    let tiled = config.architecture == Architecture::Qwen35Moe;
    let values = |start, length| match tiled {
        true => tiled_heads(&delta_net, start, length),
        false => vec![Runs::range(start, delta_net.num_value_heads * length)],
    };
    let length = delta_net.value_head_dim;
    let keys = 2 * delta_net.num_key_heads * delta_net.key_head_dim;
    let of =
        |name: &str, rows: Vec<Runs>| rows.into_iter().map(|rows| within(name, rows)).collect();
    Some(match id.kind {
        MatrixKind::DeltaIn => {
            of("attn_qkv", [vec![Runs::range(0, keys)], values(keys, length)].concat())
        }
        MatrixKind::DeltaGate => of("attn_gate", values(0, length)),
        MatrixKind::DeltaOut => {
            vec![TensorSlice { columns: Order::of(values(0, length)), ..part("ssm_out") }]
        }
        MatrixKind::DeltaBetaDecay if tiled => {
            let parts = ["ssm_beta", "ssm_alpha"].into_iter();
            parts.flat_map(|name| of(name, values(0, 1)) as Vec<TensorSlice>).collect()
        }
        kind @ MatrixKind::DeltaBetaDecay => {
            let parts = in_blocks(&delta_net, kind).into_iter();
            parts.map(|(_, rows)| within("ssm_ba", rows)).collect()
        }
        _ => return None,
    })
}

/// Returns the rows of a float tensor in a GGUF file, where the value heads of Qwen3.5-MoE are permuted.
pub(super) fn float_rows(config: &ModelConfig, id: FloatId) -> Order {
    let layer = id.layer.and_then(|layer| config.layers.get(usize::try_from(layer).ok()?));
    let (Architecture::Qwen35Moe, Some(TokenMixer::DeltaNet(delta_net))) =
        (config.architecture, layer.map(|layer| layer.mixer))
    else {
        return Order::all();
    };
    let keys = 2 * delta_net.num_key_heads * delta_net.key_head_dim;
    match id.kind {
        FloatKind::DeltaDecay | FloatKind::DeltaTimeBias => {
            Order::of(tiled_heads(&delta_net, 0, 1))
        }
        FloatKind::DeltaConv => {
            let values = tiled_heads(&delta_net, keys, delta_net.value_head_dim);
            Order::of([vec![Runs::range(0, keys)], values].concat())
        }
        _ => Order::all(),
    }
}

/// Returns runs that undo the permutation of value heads of `length` rows each. The file interleaves the
/// heads of all key heads: one of the first key head, one of the second, and so on.
fn tiled_heads(delta_net: &DeltaNetConfig, start: usize, length: usize) -> Vec<Runs> {
    let stride = delta_net.num_key_heads * length;
    let heads = 0..delta_net.num_key_heads;
    heads.map(|head| Runs { start: start + head * length, length, stride }).collect()
}

fn feed_forward_matrix(
    id: MatrixId,
    within: &str,
    feed_forward: &FeedForward,
    fused: bool,
) -> Option<TensorSlice> {
    let part = match id.kind {
        MatrixKind::Gate => "gate_proj",
        MatrixKind::Up => "up_proj",
        _ => "down_proj",
    };
    let (owner, expert) = match (id.expert, feed_forward) {
        (None, FeedForward::Dense { .. }) => (String::new(), None),
        (None, FeedForward::Moe { .. }) => ("shared_expert.".into(), None),
        (Some(expert), FeedForward::Moe { moe_intermediate_size, .. }) => {
            (format!("experts.{expert}."), Some((expert, *moe_intermediate_size)))
        }
        (Some(_), FeedForward::Dense { .. }) | (_, FeedForward::Absent) => return None,
    };
    let Some((expert, width)) = expert.filter(|_| fused) else {
        return Some(TensorSlice::whole(format!("{within}mlp.{owner}{part}.weight")));
    };
    let (part, rows) = match id.kind {
        MatrixKind::Gate => ("gate_up_proj", Runs::range(0, width)),
        MatrixKind::Up => ("gate_up_proj", Runs::range(width, width)),
        _ => ("down_proj", Runs::ALL),
    };
    let index = Some(usize::try_from(expert).ok()?);
    Some(TensorSlice { index, rows, ..TensorSlice::whole(format!("{within}mlp.experts.{part}")) })
}

/// Returns the rows of Qwen3-Next's combined tensors. They have for each key head its query, key, values and
/// gates, or beta and alpha of its value heads.
fn in_blocks(delta_net: &DeltaNetConfig, kind: MatrixKind) -> Vec<(&'static str, Runs)> {
    let shared = delta_net.num_value_heads / delta_net.num_key_heads.max(1);
    let (key, values) = (delta_net.key_head_dim, shared * delta_net.value_head_dim);
    let of = |start, length| ("in_proj_qkvz", Runs { start, length, stride: 2 * (key + values) });
    let heads = |start| ("in_proj_ba", Runs { start, length: shared, stride: 2 * shared });
    match kind {
        MatrixKind::DeltaIn => vec![of(0, key), of(key, key), of(2 * key, values)],
        MatrixKind::DeltaGate => vec![of(2 * key + values, values)],
        MatrixKind::DeltaBetaDecay => vec![heads(0), heads(shared)],
        MatrixKind::DeltaOut => vec![("out_proj", Runs::ALL)],
        _ => Vec::new(),
    }
}

/// Returns the separate tensors of Qwen3.5-MoE.
fn apart(_: &DeltaNetConfig, kind: MatrixKind) -> Vec<(&'static str, Runs)> {
    match kind {
        MatrixKind::DeltaIn => vec![("in_proj_qkv", Runs::ALL)],
        MatrixKind::DeltaGate => vec![("in_proj_z", Runs::ALL)],
        MatrixKind::DeltaBetaDecay => vec![("in_proj_b", Runs::ALL), ("in_proj_a", Runs::ALL)],
        MatrixKind::DeltaOut => vec![("out_proj", Runs::ALL)],
        _ => Vec::new(),
    }
}

fn float(config: &ModelConfig, id: FloatId, prefix: &str) -> Option<FloatSource> {
    let Some(layer) = id.layer else {
        let around_zero =
            |name| FloatSource { change: FloatChange::PlusOne, ..FloatSource::kept(name) };
        return (id.kind == FloatKind::FinalNorm)
            .then(|| around_zero(format!("{prefix}norm.weight")));
    };
    let part = match id.kind {
        FloatKind::Router => "mlp.gate.weight",
        FloatKind::SharedGate => "mlp.shared_expert_gate.weight",
        FloatKind::DeltaConv => "linear_attn.conv1d.weight",
        FloatKind::DeltaDecay => "linear_attn.A_log",
        FloatKind::DeltaTimeBias => "linear_attn.dt_bias",
        FloatKind::DeltaNorm => "linear_attn.norm.weight",
        kind => layer_float(kind)?,
    };
    let change = match id.kind {
        FloatKind::AttentionNorm
        | FloatKind::FeedForwardNorm
        | FloatKind::QueryNorm
        | FloatKind::KeyNorm => FloatChange::PlusOne,
        FloatKind::DeltaDecay => FloatChange::NegativeExp,
        _ => FloatChange::Kept,
    };
    let rows = match id.kind {
        FloatKind::QueryBias => bias_rows(config, layer)?,
        _ => Order::all(),
    };
    let whole = FloatSource::kept(format!("{prefix}layers.{layer}.{part}"));
    Some(FloatSource { rows, change, ..whole })
}

/// Returns the order of the bias of queries and gates, which matches the matrix: all queries first.
fn bias_rows(config: &ModelConfig, layer: u32) -> Option<Order> {
    match config.layers.get(usize::try_from(layer).ok()?)?.mixer {
        TokenMixer::Attention(attention) => {
            let kinds = [MatrixKind::Query, MatrixKind::QueryGate];
            Some(Order::of(kinds.map(|kind| with_gate(kind, attention.head_dim).1)))
        }
        _ => None,
    }
}
