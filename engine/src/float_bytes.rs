//! Bytes that floats take in memory beside those that a store has of them.

use nestling_formats::store::{FloatTensor, Group};
use nestling_formats::{ExpertBias, FeedForward, FloatKind, ModelConfig};

/// Bytes of an element in memory.
const FLOAT_BYTES: u64 = 4;

/// What the floats of a group take more when they are loaded as 32-bit floats; routers stay as
/// they are.
pub(crate) fn widened(group: &Group) -> u64 {
    let tensors = group.tensors.iter().filter(|tensor| tensor.kind != FloatKind::Router);
    tensors.map(widened_tensor).sum()
}

fn widened_tensor(tensor: &FloatTensor) -> u64 {
    let elements = tensor.shape.iter().fold(1u64, |all, size| all.saturating_mul(*size as u64));
    elements.saturating_mul(FLOAT_BYTES.saturating_sub(tensor.dtype.bytes() as u64))
}

/// What the biases of all experts take a second time where experts are streamed: beside the
/// tables of their layers, every expert that is there has its own.
pub(crate) fn bound_biases(config: &ModelConfig) -> u64 {
    if config.expert_bias == ExpertBias::Absent {
        return 0;
    }
    let of_layer = |feed_forward| match feed_forward {
        FeedForward::Moe { num_experts, moe_intermediate_size, .. } => {
            num_experts as u64 * (2 * moe_intermediate_size + config.hidden_size) as u64
        }
        FeedForward::Dense { .. } => 0,
    };
    FLOAT_BYTES * config.layers.iter().map(|layer| of_layer(layer.feed_forward)).sum::<u64>()
}
