"""What the committed small set tries, beside leaving out every key: switches and shapes that the tiny
checkpoints of `engine/runtime/tests/data/families` have not."""
from families import ABSENT
from values import FULL, LINEAR, SLIDING, YARN

V4_YARN = {"type": "yarn", "factor": 8, "original_max_position_embeddings": 16, "beta_fast": 8, "beta_slow": 2}
BOTH_ROPES = {"rope_theta": 500.0, "rope_scaling": YARN, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
NEW_ROPE = {"rope_theta": ABSENT, "rope_scaling": ABSENT, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
MULTI_HEAD = {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 10, "hidden_size": 30}
ONE_KEY_HEAD = {"num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 22, "hidden_size": 40}
WITHOUT_WIDTH = {"num_attention_heads": 6, "num_key_value_heads": 1, "hidden_size": 48}
# Config.json alone is changed, in every family.
CHANGED = [
    {"rope_scaling": YARN}, {"rope_scaling": V4_YARN}, {"rope_scaling": YARN | {"mscale": 0.8, "mscale_all_dim": 0.707}},
    {"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 32}},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, BOTH_ROPES, NEW_ROPE,
    {"rope_theta": ABSENT, "rope_scaling": YARN, "rope_parameters": ABSENT},
    {"rope_theta": ABSENT, "rope_scaling": ABSENT, "rope_parameters": ABSENT},
    {"norm_topk_prob": True}, {"norm_topk_prob": False}, {"hidden_act": "gelu"}, {"attention_bias": True},
    {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}, {"sliding_window": 5},
    {"layer_types": [SLIDING, FULL], "sliding_window": 5}, {"attention_dropout": 0.7}, {"is_causal": False},
    {"a_switch_of_the_future": True}, {"partial_rotary_factor": 0.5}, {"router_jitter_noise": 0.3},
    {"rope_theta": 1, "rope_scaling": YARN, "rope_parameters": ABSENT},
    {"global_head_dim": ABSENT, "num_global_key_value_heads": ABSENT, "per_layer_config": {"01": {"head_dim": 24, "num_key_value_heads": 1}}},
    {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
]
# Keys that need weights of their own, family by family; `form`, `layout` and `again` are of the maker.
MADE = {
    "qwen3_moe": [
        ONE_KEY_HEAD | {"num_experts": 9, "num_experts_per_tok": 1, "norm_topk_prob": False, "tie_word_embeddings": True, "attention_bias": True, "rms_norm_eps": 1e-3},
        MULTI_HEAD | {"num_experts_per_tok": 5, "num_hidden_layers": 3, "decoder_sparse_step": 2, "mlp_only_layers": [1], "rope_scaling": YARN | {"attention_factor": 1.3}},
    ],
    "qwen2_moe": [
        WITHOUT_WIDTH | {"num_experts": 9, "num_experts_per_tok": 1, "tie_word_embeddings": True},
        {"qkv_bias": False, "num_experts_per_tok": 5, "norm_topk_prob": True, "mlp_only_layers": [0], "rope_scaling": V4_YARN},
    ],
    "qwen3_next": [
        ONE_KEY_HEAD | {"head_dim": 16, "attention_bias": True, "layer_types": [FULL, LINEAR], "linear_num_value_heads": 10, "linear_conv_kernel_dim": 2, "rope_scaling": YARN},
        {"num_experts_per_tok": 1, "norm_topk_prob": False, "tie_word_embeddings": True, "linear_conv_kernel_dim": 3, "partial_rotary_factor": 0.5, "mlp_only_layers": [1]},
    ],
    "qwen3_5_moe": [
        ONE_KEY_HEAD | {"head_dim": 16, "attention_bias": True, "num_experts_per_tok": 1, "layer_types": [FULL, LINEAR], "linear_conv_kernel_dim": 3, "layout": "fused"},
        {"tie_word_embeddings": True, "num_experts_per_tok": 5, "form": "saved", "layout": "fused"},
        {"again": True},
    ],
    "qwen3_5_moe_text": [
        MULTI_HEAD | {"head_dim": 16, "attention_bias": True, "linear_num_value_heads": 6, "layout": "fused"},
        {"tie_word_embeddings": True, "num_experts_per_tok": 1, "form": "saved"},
        {"again": True},
    ],
    "olmoe": [
        WITHOUT_WIDTH | {"num_experts": 9, "num_experts_per_tok": 1, "tie_word_embeddings": True, "attention_bias": True, "rms_norm_eps": 1e-3},
        {"num_experts_per_tok": 5, "norm_topk_prob": True, "rope_scaling": YARN, "form": "saved"},
    ],
    "mixtral": [
        ONE_KEY_HEAD | {"num_experts_per_tok": 1, "tie_word_embeddings": True, "sliding_window": 17},
        MULTI_HEAD | {"num_local_experts": 3, "num_experts_per_tok": 3, "rope_scaling": YARN | {"truncate": False}, "sliding_window": 64, "form": "saved"},
    ],
    "granitemoe": [
        WITHOUT_WIDTH | {"attention_bias": True, "num_experts_per_tok": 1, "tie_word_embeddings": True},
        {"attention_bias": True, "num_experts_per_tok": 5, "residual_multiplier": -0.5, "logits_scaling": -2.0, "rope_scaling": V4_YARN, "form": "saved"},
    ],
    "deepseek_v2": [
        {"n_group": 3, "topk_group": 1, "n_routed_experts": 9, "num_experts_per_tok": 1, "routed_scaling_factor": 4.0, "n_shared_experts": 3, "first_k_dense_replace": 0, "tie_word_embeddings": True, "rms_norm_eps": 1e-3},
        {"num_attention_heads": 5, "num_key_value_heads": 5, "q_lora_rank": None, "v_head_dim": 6, "qk_nope_head_dim": 20, "qk_rope_head_dim": 4, "num_experts_per_tok": 6, "topk_method": "greedy", "rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}, "form": "saved"},
    ],
    "deepseek_v3": [
        {"n_group": 3, "topk_group": 2, "n_routed_experts": 9, "num_experts_per_tok": 1, "norm_topk_prob": False, "first_k_dense_replace": 0, "tie_word_embeddings": True, "rope_interleave": False},
        {"q_lora_rank": None, "n_shared_experts": 2, "num_experts_per_tok": 3, "rope_scaling": None, "form": "saved"},
        {"again": True},
    ],
    "glm4_moe_lite": [
        {"n_group": 3, "topk_group": 2, "n_routed_experts": 9, "norm_topk_prob": False, "rope_interleave": False, "tie_word_embeddings": True, "n_shared_experts": 2},
        {"q_lora_rank": None, "num_hidden_layers": 3, "mlp_layer_types": ["sparse", "dense", "sparse"], "num_experts_per_tok": 3, "rope_scaling": YARN, "form": "saved"},
    ],
    "gemma4": [
        ONE_KEY_HEAD | {"head_dim": 10, "num_global_key_value_heads": 1, "num_experts_per_tok": ABSENT, "top_k_experts": 1, "sliding_window": 13, "final_logit_softcapping": 5.0, "form": "saved"},
        {"again": True},
    ],
    "gemma4_text": [
        {"attention_k_eq_v": False, "top_k_experts": 5, "sliding_window": 50, "global_head_dim": 32, "tie_word_embeddings": False, "final_logit_softcapping": None},
        {"layer_types": [FULL, FULL], "num_global_key_value_heads": 4, "form": "saved"},
        {"again": True},
    ],
    "gpt_oss": [
        ONE_KEY_HEAD | {"num_experts_per_tok": 1, "experts_per_token": ABSENT, "tie_word_embeddings": True, "attention_bias": False, "sliding_window": 5, "swiglu_limit": 1.5, "swiglu_alpha": 1.0},
        MULTI_HEAD | {"num_experts_per_tok": 5, "layer_types": [FULL, SLIDING], "sliding_window": 33, "form": "saved"},
    ],
}
