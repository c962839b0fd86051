//! Laguna by its llama.cpp names. Files give heads by layer, and RoPE settings of layers with a sliding window
//! under names of their own. The kinds of layers and of gates follow from the family and the tensors.

use super::family::{Family, Fixed, PLAIN, SIGMOID, SILU};
use super::key::{Key, PATTERN};

/// Value of `model_type`.
pub const NAME: &str = "laguna";

/// Key of the number of dense layers, which are the first.
pub const DENSE: &str = "leading_dense_block_count";

/// Laguna.
pub const FAMILY: Family = Family {
    gguf: "laguna",
    model_type: NAME,
    class: "LagunaForCausalLM",
    keys: &[
        Key::EachLayer(
            "attention.head_count",
            ["num_attention_heads", "num_attention_heads_per_layer"],
        ),
        Key::Same("feed_forward_length", "intermediate_size"),
        Key::Same("expert_count", "num_experts"),
        Key::Same("expert_feed_forward_length", "moe_intermediate_size"),
        Key::Same("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
        Key::Optional("attention.sliding_window", "sliding_window"),
        Key::Kinds(PATTERN, "layer_types", ["full_attention", "sliding_attention"]),
        Key::Optional("expert_weights_scale", "moe_routed_scaling_factor"),
    ],
    fixed: &[SILU, ("attention_bias", Fixed::Bool(false))],
    absent: &[
        ("moe_routed_scaling_factor", Fixed::Whole(1)),
        // llama.cpp normalizes the weights only if the file says so.
        ("norm_topk_prob", Fixed::Bool(false)),
    ],
    ignored: &["expert_shared_count", "rope.freq_base_swa", "rope.dimension_count_swa", DENSE],
    gating: SIGMOID,
    ..PLAIN
};
