//! Nemotron-H and Nemotron-3 by their llama.cpp names.

use super::family::{self, Family, Fixed, SIGMOID};
use super::key::Key;

/// Layers without key heads and without a width are Mamba-2.
const MIXERS: Key = Key::HeadsByLayer(
    "attention.head_count_kv",
    "num_key_value_heads",
    "layers_block_type",
    ["linear_attention", "full_attention"],
);

/// Files have one of two epsilons.
const RMS_EPSILON: Key = Key::Optional("attention.layer_norm_rms_epsilon", "rms_norm_eps");
const EPSILON: Key = Key::Optional("attention.layer_norm_epsilon", "layer_norm_epsilon");

const KEYS: &[Key] = &[
    MIXERS,
    RMS_EPSILON,
    EPSILON,
    Key::WidthsByLayer("feed_forward_length", "moe_intermediate_size", "layers_block_type", "moe"),
    Key::Same("expert_count", "n_routed_experts"),
    Key::Same("expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size"),
    Key::Same("expert_shared_count", "n_shared_experts"),
    Key::Optional("expert_weights_scale", "routed_scaling_factor"),
    Key::Optional("expert_group_count", "n_group"),
    Key::Optional("expert_group_used_count", "topk_group"),
    Key::Optional("moe_latent_size", "moe_latent_size"),
    Key::Same("ssm.conv_kernel", "conv_kernel"),
    Key::Same("ssm.state_size", "ssm_state_size"),
    Key::Same("ssm.group_count", "n_groups"),
    Key::Same("ssm.time_step_rank", "mamba_num_heads"),
    Key::Quotient("ssm.inner_size", "ssm.time_step_rank", "mamba_head_dim"),
];

const DENSE_KEYS: &[Key] = &[
    MIXERS,
    RMS_EPSILON,
    EPSILON,
    Key::WidthsByLayer("feed_forward_length", "intermediate_size", "layers_block_type", "mlp"),
    Key::Same("ssm.conv_kernel", "conv_kernel"),
    Key::Same("ssm.state_size", "ssm_state_size"),
    Key::Same("ssm.group_count", "n_groups"),
    Key::Same("ssm.time_step_rank", "mamba_num_heads"),
    Key::Quotient("ssm.inner_size", "ssm.time_step_rank", "mamba_head_dim"),
];

/// Nemotron-3.
pub const MOE: Family = Family {
    gguf: "nemotron_h_moe",
    model_type: "nemotron_h",
    class: "NemotronHForCausalLM",
    keys: KEYS,
    fixed: &[("use_bias", Fixed::Bool(false))],
    // Without the number of chosen groups there is but one group.
    absent: &[("routed_scaling_factor", Fixed::Whole(1)), ("topk_group", Fixed::Null)],
    present: &[("attn_output.bias", "attention_bias"), ("ssm_conv1d.bias", "use_conv_bias")],
    ignored: &["expert_feed_forward_length"],
    gating: SIGMOID,
    ..family::PLAIN
};

/// Nemotron-H without experts.
pub const DENSE: Family = Family {
    gguf: "nemotron_h",
    model_type: "nemotron_h",
    class: "NemotronHForCausalLM",
    keys: DENSE_KEYS,
    fixed: &[("use_bias", Fixed::Bool(false))],
    present: &[("attn_output.bias", "attention_bias"), ("ssm_conv1d.bias", "use_conv_bias")],
    ignored: &["expert_count", "expert_used_count"],
    is_dense: true,
    ..family::PLAIN
};
