//! Model families by their llama.cpp names, as a table.

use super::family::{DENSE, Family, Fixed, PLAIN, SIGMOID, SILU, SOFTMAX_OF_CHOSEN};
use super::granite;
use super::key::{Key, PATTERN};
use super::laguna;
use super::nemotron;

/// Keys of all families.
pub const COMMON: &[Key] = &[
    Key::Same("context_length", "max_position_embeddings"),
    Key::Same("embedding_length", "hidden_size"),
    Key::Same("attention.head_count", "num_attention_heads"),
    Key::Same("attention.head_count_kv", "num_key_value_heads"),
    Key::Same("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
];

/// Keys of all families with experts.
pub const EXPERTS: &[Key] = &[Key::Same("expert_used_count", "num_experts_per_tok")];

/// Keys of all families that are handled separately or have no effect.
pub const KNOWN: &[&str] = &[
    "block_count",
    "nextn_predict_layers",
    "vocab_size",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_ext_factor",
    "attention.key_length",
    "attention.value_length",
    "expert_weights_norm",
    "expert_gating_func",
    // Group keys, which matter only to families that convert them.
    "expert_group_count",
    "expert_group_used_count",
];

/// Keys of families with latent attention. Only DeepSeek-V3.2 and GLM-5 have an indexer.
const LATENT: &[Key] = &[
    Key::Same("feed_forward_length", "intermediate_size"),
    Key::Same("expert_count", "n_routed_experts"),
    Key::Same("expert_feed_forward_length", "moe_intermediate_size"),
    Key::Same("attention.kv_lora_rank", "kv_lora_rank"),
    Key::Optional("attention.q_lora_rank", "q_lora_rank"),
    Key::Optional("attention.indexer.head_count", "index_n_heads"),
    Key::Optional("attention.indexer.key_length", "index_head_dim"),
    Key::Optional("attention.indexer.top_k", "index_topk"),
    Key::Same("leading_dense_block_count", "first_k_dense_replace"),
    Key::Optional("expert_shared_count", "n_shared_experts"),
    Key::Optional("expert_weights_scale", "routed_scaling_factor"),
    Key::Optional("expert_group_count", "n_group"),
    Key::Optional("expert_group_used_count", "topk_group"),
];

/// Key of families with short convolutions: layers without key heads have one.
const CONVOLVED: Key = Key::HeadsByLayer(
    "attention.head_count_kv",
    "num_key_value_heads",
    "layer_types",
    ["conv", "full_attention"],
);

/// Keys of families with latent attention that are handled separately.
const LATENT_KNOWN: &[&str] = &[
    "attention.key_length_mla",
    "attention.value_length_mla",
    "rope.scaling.yarn_log_multiplier",
    "attention.indexer.types",
];

/// Values of families with latent attention for absent keys.
const LATENT_ABSENT: &[(&str, Fixed)] = &[
    ("q_lora_rank", Fixed::Null),
    ("n_shared_experts", Fixed::Whole(0)),
    ("routed_scaling_factor", Fixed::Whole(1)),
    ("n_group", Fixed::Whole(1)),
];

/// The same for families with an indexer, whose sizes every file has.
const SPARSE_ABSENT: &[(&str, Fixed)] = &[
    ("q_lora_rank", Fixed::Null),
    ("index_n_heads", Fixed::Null),
    ("index_head_dim", Fixed::Null),
    ("index_topk", Fixed::Null),
    ("n_shared_experts", Fixed::Whole(0)),
    ("routed_scaling_factor", Fixed::Whole(1)),
    ("n_group", Fixed::Whole(1)),
];

/// DeepSeek-V3.2, also the base of GLM-5.
const SPARSE: Family = Family {
    gguf: "deepseek32",
    model_type: "deepseek_v32",
    class: "DeepseekV32ForCausalLM",
    keys: LATENT,
    fixed: &[SILU, ("norm_topk_prob", Fixed::Bool(false))],
    absent: SPARSE_ABSENT,
    ignored: LATENT_KNOWN,
    gating: SIGMOID,
    ..PLAIN
};

/// A published model whose files lack group keys, because llama.cpp added them in October 2025.
pub struct GroupedModel {
    /// Number of experts, width and number of layers, which identify the model.
    pub sizes: [(&'static str, u64); 3],
    /// Published values of `n_group` and `topk_group`.
    pub groups: [u64; 2],
}

/// DeepSeek-V3, R1 and V3.1; V2, V2.5 and Coder-V2. Derived models of these sizes have the same groups.
pub const GROUPED: &[GroupedModel] = &[
    GroupedModel {
        sizes: [("n_routed_experts", 256), ("hidden_size", 7168), ("num_hidden_layers", 61)],
        groups: [8, 4],
    },
    GroupedModel {
        sizes: [("n_routed_experts", 160), ("hidden_size", 5120), ("num_hidden_layers", 60)],
        groups: [8, 3],
    },
];

/// Keys of families with DeepSeek-V3's experts and ordinary attention.
const ROUTED: &[Key] = &[
    Key::Optional("feed_forward_length", "intermediate_size"),
    Key::Same("expert_count", "n_routed_experts"),
    Key::Same("expert_feed_forward_length", "moe_intermediate_size"),
    Key::Optional("leading_dense_block_count", "first_k_dense_replace"),
    Key::Optional("expert_shared_count", "n_shared_experts"),
    Key::Optional("expert_weights_scale", "routed_scaling_factor"),
    Key::Optional("expert_group_count", "n_group"),
    Key::Optional("expert_group_used_count", "topk_group"),
];

/// Values of families with DeepSeek-V3's experts for absent keys.
const ROUTED_ABSENT: &[(&str, Fixed)] = &[
    ("first_k_dense_replace", Fixed::Whole(0)),
    ("n_shared_experts", Fixed::Whole(0)),
    ("routed_scaling_factor", Fixed::Whole(1)),
    ("n_group", Fixed::Whole(1)),
    ("topk_group", Fixed::Whole(1)),
    ("partial_rotary_factor", Fixed::Whole(1)),
];

/// Keys of families with recurrent layers.
const RECURRENT: &[Key] = &[
    Key::Same("expert_count", "num_experts"),
    Key::Same("expert_feed_forward_length", "moe_intermediate_size"),
    Key::Same("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    Key::Same("ssm.conv_kernel", "linear_conv_kernel_dim"),
    Key::Same("ssm.state_size", "linear_key_head_dim"),
    Key::Same("ssm.group_count", "linear_num_key_heads"),
    Key::Same("ssm.time_step_rank", "linear_num_value_heads"),
    Key::Quotient("ssm.inner_size", "ssm.time_step_rank", "linear_value_head_dim"),
    Key::Optional("full_attention_interval", "full_attention_interval"),
    Key::Kinds("attention.recurrent_layers", "layer_types", ["full_attention", "linear_attention"]),
];

/// Qwen3-MoE, also the base of the families with the same experts.
const QWEN3: Family = Family {
    gguf: "qwen3moe",
    model_type: "qwen3_moe",
    class: "Qwen3MoeForCausalLM",
    keys: &[
        Key::Same("feed_forward_length", "intermediate_size"),
        Key::Same("expert_count", "num_experts"),
        Key::Same("expert_feed_forward_length", "moe_intermediate_size"),
    ],
    fixed: &[SILU, ("norm_topk_prob", Fixed::Bool(true)), ("attention_bias", Fixed::Bool(false))],
    ignored: &["expert_shared_count"],
    ..PLAIN
};

/// All supported families.
pub const FAMILIES: &[Family] = &[
    QWEN3,
    Family {
        gguf: "afmoe",
        model_type: "afmoe",
        class: "AfmoeForCausalLM",
        keys: &[
            Key::Same("feed_forward_length", "intermediate_size"),
            Key::Same("expert_count", "num_experts"),
            Key::Same("expert_feed_forward_length", "moe_intermediate_size"),
            Key::Same("attention.sliding_window", "sliding_window"),
            Key::Kinds(PATTERN, "layer_types", ["full_attention", "sliding_attention"]),
            Key::Optional("leading_dense_block_count", "num_dense_layers"),
            Key::Optional("expert_shared_count", "num_shared_experts"),
            Key::Optional("expert_weights_scale", "route_scale"),
            Key::Optional("expert_group_count", "n_group"),
            Key::Optional("expert_group_used_count", "topk_group"),
        ],
        fixed: &[
            SILU,
            ("attention_bias", Fixed::Bool(false)),
            ("global_attn_every_n_layers", Fixed::Whole(4)),
            ("mup_enabled", Fixed::Bool(true)),
        ],
        absent: &[
            ("num_dense_layers", Fixed::Whole(0)),
            ("num_shared_experts", Fixed::Whole(0)),
            ("route_scale", Fixed::Whole(1)),
            // llama.cpp normalizes the weights only if the file says so.
            ("norm_topk_prob", Fixed::Bool(false)),
        ],
        gating: SIGMOID,
        ..PLAIN
    },
    Family {
        gguf: "olmoe",
        model_type: "olmoe",
        class: "OlmoeForCausalLM",
        keys: &[
            Key::Same("feed_forward_length", "intermediate_size"),
            Key::Same("expert_count", "num_experts"),
        ],
        fixed: &[
            SILU,
            ("norm_topk_prob", Fixed::Bool(false)),
            ("attention_bias", Fixed::Bool(false)),
        ],
        ignored: &["expert_feed_forward_length"],
        ..PLAIN
    },
    // Llama, and Mistral without sliding windows.
    Family {
        gguf: "llama",
        model_type: "llama",
        class: "LlamaForCausalLM",
        divides_frequencies: true,
        present: &[("attn_output.bias", "attention_bias")],
        ..DENSE
    },
    Family { gguf: "qwen2", model_type: "qwen2", class: "Qwen2ForCausalLM", ..DENSE },
    Family {
        gguf: "qwen3",
        model_type: "qwen3",
        class: "Qwen3ForCausalLM",
        present: &[("attn_output.bias", "attention_bias")],
        ..DENSE
    },
    granite::DENSE,
    granite::HYBRID_DENSE,
    nemotron::DENSE,
    Family {
        gguf: "gemma3",
        model_type: "gemma3_text",
        class: "Gemma3ForCausalLM",
        keys: &[
            Key::Same("feed_forward_length", "intermediate_size"),
            Key::Same("attention.sliding_window", "sliding_window"),
            Key::Kinds(PATTERN, "layer_types", ["full_attention", "sliding_attention"]),
            Key::Optional("final_logit_softcapping", "final_logit_softcapping"),
        ],
        fixed: &[("hidden_activation", Fixed::Text("gelu_pytorch_tanh"))],
        ignored: &["expert_count", "expert_used_count", "rope.freq_base_swa"],
        ..DENSE
    },
    Family {
        gguf: "llama",
        model_type: "mixtral",
        class: "MixtralForCausalLM",
        keys: &[
            Key::Same("feed_forward_length", "intermediate_size"),
            Key::Same("expert_count", "num_local_experts"),
        ],
        fixed: &[SILU],
        ignored: &["expert_feed_forward_length"],
        ..PLAIN
    },
    granite::SHARED,
    granite::PLAIN,
    granite::HYBRID,
    // llama.cpp stretches the base of RoPE itself, and always normalizes the weights.
    Family {
        gguf: "hunyuan-moe",
        model_type: "hunyuan_v1_moe",
        class: "HunYuanMoEV1ForCausalLM",
        keys: &[
            Key::Same("expert_count", "num_experts"),
            Key::Same("expert_feed_forward_length", "moe_intermediate_size"),
            Key::Same("expert_shared_feed_forward_length", "intermediate_size"),
            Key::Optional("expert_shared_count", "num_shared_expert"),
        ],
        fixed: &[SILU],
        present: &[("attn_output.bias", "attention_bias")],
        ignored: &["feed_forward_length"],
        ..PLAIN
    },
    laguna::FAMILY,
    nemotron::MOE,
    Family {
        gguf: "qwen2moe",
        model_type: "qwen2_moe",
        class: "Qwen2MoeForCausalLM",
        keys: &[
            Key::Same("feed_forward_length", "intermediate_size"),
            Key::Same("expert_count", "num_experts"),
            Key::Same("expert_feed_forward_length", "moe_intermediate_size"),
            Key::Same("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
        ],
        fixed: &[SILU, ("norm_topk_prob", Fixed::Bool(false))],
        ignored: &["expert_shared_count"],
        ..PLAIN
    },
    Family {
        gguf: "gpt-oss",
        model_type: "gpt_oss",
        class: "GptOssForCausalLM",
        keys: &[
            Key::Same("expert_feed_forward_length", "intermediate_size"),
            Key::Same("expert_count", "num_local_experts"),
            Key::Same("attention.sliding_window", "sliding_window"),
        ],
        fixed: &[SILU, ("attention_bias", Fixed::Bool(true))],
        ignored: &["feed_forward_length"],
        gating: SOFTMAX_OF_CHOSEN,
        ..PLAIN
    },
    Family {
        gguf: "qwen3next",
        model_type: "qwen3_next",
        class: "Qwen3NextForCausalLM",
        keys: RECURRENT,
        fixed: &[
            SILU,
            ("norm_topk_prob", Fixed::Bool(true)),
            ("attention_bias", Fixed::Bool(false)),
        ],
        ignored: &["feed_forward_length", "expert_shared_count"],
        ..PLAIN
    },
    Family {
        gguf: "deepseek2",
        model_type: "deepseek_v2",
        class: "DeepseekV2ForCausalLM",
        keys: LATENT,
        fixed: &[
            SILU,
            ("norm_topk_prob", Fixed::Bool(false)),
            ("topk_method", Fixed::Text("group_limited_greedy")),
        ],
        absent: LATENT_ABSENT,
        ignored: LATENT_KNOWN,
        ..PLAIN
    },
    Family {
        gguf: "deepseek2",
        model_type: "glm4_moe_lite",
        class: "Glm4MoeLiteForCausalLM",
        keys: LATENT,
        fixed: &[SILU, ("norm_topk_prob", Fixed::Bool(false))],
        absent: LATENT_ABSENT,
        ignored: LATENT_KNOWN,
        gating: SIGMOID,
        ..PLAIN
    },
    SPARSE,
    Family { gguf: "glm-dsa", model_type: "glm_moe_dsa", class: "GlmMoeDsaForCausalLM", ..SPARSE },
    Family {
        gguf: "glm4moe",
        model_type: "glm4_moe",
        class: "Glm4MoeForCausalLM",
        keys: ROUTED,
        fixed: &[SILU, ("norm_topk_prob", Fixed::Bool(false))],
        absent: ROUTED_ABSENT,
        present: &[("attn_q.bias", "attention_bias"), ("attn_q_norm.weight", "use_qk_norm")],
        gating: SIGMOID,
        ..PLAIN
    },
    Family {
        gguf: "bailingmoe2",
        model_type: "bailing_moe_v2",
        class: "BailingMoeV2ForCausalLM",
        keys: &[
            Key::Same("feed_forward_length", "intermediate_size"),
            Key::Same("expert_count", "num_experts"),
            Key::Same("expert_feed_forward_length", "moe_intermediate_size"),
            Key::Optional(
                "expert_shared_feed_forward_length",
                "moe_shared_expert_intermediate_size",
            ),
            Key::Optional("leading_dense_block_count", "first_k_dense_replace"),
            Key::Optional("expert_shared_count", "num_shared_experts"),
            Key::Optional("expert_weights_scale", "routed_scaling_factor"),
            Key::Optional("expert_group_count", "n_group"),
            Key::Optional("expert_group_used_count", "topk_group"),
        ],
        fixed: &[
            SILU,
            ("use_qk_norm", Fixed::Bool(true)),
            ("use_qkv_bias", Fixed::Bool(false)),
            ("use_bias", Fixed::Bool(false)),
        ],
        absent: &[
            ("first_k_dense_replace", Fixed::Whole(0)),
            ("routed_scaling_factor", Fixed::Whole(1)),
            ("n_group", Fixed::Whole(1)),
            ("topk_group", Fixed::Whole(1)),
            ("partial_rotary_factor", Fixed::Whole(1)),
        ],
        gating: SIGMOID,
        ..PLAIN
    },
    Family {
        gguf: "lfm2",
        model_type: "lfm2",
        class: "Lfm2ForCausalLM",
        keys: &[
            Key::Same("feed_forward_length", "intermediate_size"),
            Key::Same("shortconv.l_cache", "conv_L_cache"),
            CONVOLVED,
        ],
        fixed: &[
            SILU,
            ("block_auto_adjust_ff_dim", Fixed::Bool(false)),
            ("conv_bias", Fixed::Bool(false)),
        ],
        ..DENSE
    },
    Family {
        gguf: "lfm2moe",
        model_type: "lfm2_moe",
        class: "Lfm2MoeForCausalLM",
        keys: &[
            Key::Same("feed_forward_length", "intermediate_size"),
            Key::Same("expert_count", "num_experts"),
            Key::Same("expert_feed_forward_length", "moe_intermediate_size"),
            Key::Same("leading_dense_block_count", "num_dense_layers"),
            Key::Same("shortconv.l_cache", "conv_L_cache"),
            CONVOLVED,
        ],
        fixed: &[
            SILU,
            ("conv_bias", Fixed::Bool(false)),
            ("norm_topk_prob", Fixed::Bool(true)),
            ("routed_scaling_factor", Fixed::Whole(1)),
            ("use_expert_bias", Fixed::Bool(true)),
        ],
        gating: SIGMOID,
        ..PLAIN
    },
    Family {
        gguf: "ernie4_5-moe",
        model_type: "ernie4_5_moe",
        class: "Ernie4_5_MoeForCausalLM",
        keys: &[
            Key::Same("feed_forward_length", "intermediate_size"),
            Key::Same("expert_count", "moe_num_experts"),
            Key::Same("expert_used_count", "moe_k"),
            Key::Same("expert_feed_forward_length", "moe_intermediate_size"),
            Key::Same("interleave_moe_layer_step", "moe_layer_interval"),
            Key::Optional("leading_dense_block_count", "moe_layer_start_index"),
            Key::Optional("expert_shared_count", "moe_num_shared_experts"),
        ],
        fixed: &[SILU, ("use_bias", Fixed::Bool(false))],
        absent: &[
            ("moe_layer_start_index", Fixed::Whole(0)),
            ("moe_num_shared_experts", Fixed::Whole(0)),
        ],
        // llama.cpp's converter writes this key as the width of the shared experts.
        ignored: &["expert_shared_feed_forward_length"],
        ..PLAIN
    },
    Family {
        gguf: "exaone-moe",
        model_type: "exaone_moe",
        class: "ExaoneMoeForCausalLM",
        keys: &[
            Key::Same("feed_forward_length", "intermediate_size"),
            Key::Same("expert_count", "num_experts"),
            Key::Same("expert_feed_forward_length", "moe_intermediate_size"),
            Key::Same("attention.sliding_window", "sliding_window"),
            Key::Kinds(PATTERN, "layer_types", ["full_attention", "sliding_attention"]),
            Key::Optional("leading_dense_block_count", "first_k_dense_replace"),
            Key::Optional("expert_shared_count", "num_shared_experts"),
            Key::Optional("expert_weights_scale", "routed_scaling_factor"),
            Key::Optional("expert_group_count", "n_group"),
            Key::Optional("expert_group_used_count", "topk_group"),
        ],
        fixed: &[
            SILU,
            ("norm_topk_prob", Fixed::Bool(false)),
            ("sliding_window_pattern", Fixed::Whole(4)),
        ],
        absent: &[
            ("first_k_dense_replace", Fixed::Whole(0)),
            ("num_shared_experts", Fixed::Whole(0)),
            ("routed_scaling_factor", Fixed::Whole(1)),
            ("n_group", Fixed::Whole(1)),
            ("topk_group", Fixed::Whole(1)),
        ],
        ignored: &["expert_shared_feed_forward_length"],
        gating: SIGMOID,
        ..PLAIN
    },
    Family {
        gguf: "dots1",
        model_type: "dots1",
        class: "Dots1ForCausalLM",
        keys: ROUTED,
        fixed: &[SILU, ("norm_topk_prob", Fixed::Bool(false)), ("sliding_window", Fixed::Null)],
        absent: ROUTED_ABSENT,
        present: &[("attn_output.bias", "attention_bias")],
        gating: SIGMOID,
        ..PLAIN
    },
    Family {
        gguf: "minimax-m2",
        model_type: "minimax_m2",
        class: "MiniMaxM2ForCausalLM",
        keys: &[
            Key::Same("expert_feed_forward_length", "intermediate_size"),
            Key::Same("expert_count", "num_local_experts"),
        ],
        fixed: &[SILU],
        absent: &[("partial_rotary_factor", Fixed::Whole(1))],
        ignored: &["feed_forward_length"],
        gating: SIGMOID,
        ..PLAIN
    },
    Family {
        gguf: "qwen3vlmoe",
        model_type: "qwen3_vl_moe",
        class: "Qwen3VLMoeForConditionalGeneration",
        // Multimodal RoPE in three dimensions equals plain RoPE for text.
        ignored: &["expert_shared_count", "n_deepstack_layers", "rope.dimension_sections"],
        part: Some("text_config"),
        ..QWEN3
    },
    Family {
        gguf: "gemma4",
        model_type: "gemma4",
        class: "Gemma4ForConditionalGeneration",
        keys: &[
            Key::Same("feed_forward_length", "intermediate_size"),
            Key::Same("expert_count", "num_experts"),
            Key::Same("expert_used_count", "top_k_experts"),
            Key::Same("expert_feed_forward_length", "moe_intermediate_size"),
            Key::ByWindow(
                "attention.head_count_kv",
                ["num_key_value_heads", "num_global_key_value_heads"],
            ),
            Key::Same("attention.sliding_window", "sliding_window"),
            Key::Kinds(PATTERN, "layer_types", ["full_attention", "sliding_attention"]),
            Key::Same("attention.key_length", "global_head_dim"),
            Key::Same("attention.key_length_swa", "head_dim"),
            Key::Optional("attention.shared_kv_layers", "num_kv_shared_layers"),
            Key::Optional("embedding_length_per_layer_input", "hidden_size_per_layer_input"),
            Key::Optional("final_logit_softcapping", "final_logit_softcapping"),
        ],
        fixed: &[
            ("hidden_activation", Fixed::Text("gelu_pytorch_tanh")),
            ("enable_moe_block", Fixed::Bool(true)),
        ],
        absent: &[("hidden_size_per_layer_input", Fixed::Whole(0))],
        ignored: &["attention.value_length_swa", "rope.freq_base_swa", "rope.dimension_count_swa"],
        part: Some("text_config"),
        ..PLAIN
    },
    Family {
        gguf: "qwen35moe",
        model_type: "qwen3_5_moe",
        class: "Qwen3_5MoeForConditionalGeneration",
        keys: RECURRENT,
        fixed: &[SILU, ("norm_topk_prob", Fixed::Bool(true))],
        // Multimodal RoPE in three dimensions equals plain RoPE for text.
        ignored: &["feed_forward_length", "expert_shared_count", "rope.dimension_sections"],
        part: Some("text_config"),
        ..PLAIN
    },
];
