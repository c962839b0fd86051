//! Granite's families by their llama.cpp names.

use super::family::{self, Family, Fixed, SILU};
use super::key::Key;

/// Keys of Granite without experts.
const DENSE_KEYS: &[Key] = &[
    Key::Same("feed_forward_length", "intermediate_size"),
    Key::Same("attention.scale", "attention_multiplier"),
    Key::Same("embedding_scale", "embedding_multiplier"),
    Key::Same("residual_scale", "residual_multiplier"),
    Key::Same("logit_scale", "logits_scaling"),
];

/// Keys of Granite's MoE models.
const KEYS: &[Key] = &[
    Key::Same("feed_forward_length", "intermediate_size"),
    Key::Same("expert_count", "num_local_experts"),
    Key::Same("attention.scale", "attention_multiplier"),
    Key::Same("embedding_scale", "embedding_multiplier"),
    Key::Same("residual_scale", "residual_multiplier"),
    Key::Same("logit_scale", "logits_scaling"),
    Key::Optional("expert_shared_feed_forward_length", "shared_intermediate_size"),
];

/// Keys of Granite 4 hybrid, with and without experts. Layers without key heads are Mamba-2.
const HYBRID_KEYS: &[Key] = &[
    Key::Same("feed_forward_length", "intermediate_size"),
    Key::Optional("expert_count", "num_local_experts"),
    Key::Same("attention.scale", "attention_multiplier"),
    Key::Same("embedding_scale", "embedding_multiplier"),
    Key::Same("residual_scale", "residual_multiplier"),
    Key::Same("logit_scale", "logits_scaling"),
    Key::Same("expert_shared_feed_forward_length", "shared_intermediate_size"),
    Key::HeadsByLayer(
        "attention.head_count_kv",
        "num_key_value_heads",
        "layer_types",
        ["mamba", "attention"],
    ),
    Key::Same("ssm.conv_kernel", "mamba_d_conv"),
    Key::Same("ssm.state_size", "mamba_d_state"),
    Key::Same("ssm.group_count", "mamba_n_groups"),
    Key::Same("ssm.time_step_rank", "mamba_n_heads"),
    Key::Quotient("ssm.inner_size", "ssm.time_step_rank", "mamba_d_head"),
    Key::Choice("rope.scaling.finetuned", "position_embedding_type", ["nope", "rope"]),
];

const NO_BIAS: (&str, Fixed) = ("attention_bias", Fixed::Bool(false));

/// Dense Granite.
pub const DENSE: Family = Family {
    gguf: "granite",
    model_type: "granite",
    class: "GraniteForCausalLM",
    keys: DENSE_KEYS,
    present: &[("attn_output.bias", "attention_bias")],
    divides_frequencies: true,
    ..family::DENSE
};

/// Granite MoE with a shared expert.
pub const SHARED: Family = Family {
    model_type: "granitemoeshared",
    class: "GraniteMoeSharedForCausalLM",
    marked_by: Some("expert_shared_feed_forward_length"),
    ..PLAIN
};

/// Granite MoE.
pub const PLAIN: Family = Family {
    gguf: "granitemoe",
    model_type: "granitemoe",
    class: "GraniteMoeForCausalLM",
    keys: KEYS,
    fixed: &[SILU, NO_BIAS],
    ignored: &["expert_feed_forward_length"],
    ..family::PLAIN
};

/// Granite 4 hybrid with experts.
pub const HYBRID: Family = Family {
    gguf: "granitehybrid",
    model_type: "granitemoehybrid",
    class: "GraniteMoeHybridForCausalLM",
    keys: HYBRID_KEYS,
    fixed: &[SILU, ("mamba_proj_bias", Fixed::Bool(false))],
    absent: &[("num_local_experts", Fixed::Whole(0))],
    present: &[("attn_output.bias", "attention_bias"), ("ssm_conv1d.bias", "mamba_conv_bias")],
    ignored: &["expert_feed_forward_length"],
    ..family::PLAIN
};

/// Granite 4 hybrid without experts.
pub const HYBRID_DENSE: Family =
    Family { is_dense: true, ignored: &["expert_used_count"], ..HYBRID };
