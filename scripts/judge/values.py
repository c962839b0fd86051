"""Unusual values of single keys, legal and not: each is put into the configuration of every family."""
from families import ABSENT, POSITIONS, Family

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
# What `rope_scaling` and `rope_parameters` may be.
ROPES = [
    YARN,
    {"type": "yarn", "factor": 8, "original_max_position_embeddings": 16, "beta_fast": 8, "beta_slow": 2},
    YARN | {"attention_factor": 1.3},
    YARN | {"truncate": False, "beta_fast": 16.0},
    YARN | {"mscale": 0.8, "mscale_all_dim": 0.707},
    YARN | {"mscale": 0.8},
    YARN | {"mscale_all_dim": 0.707},
    YARN | {"mscale": 0, "mscale_all_dim": 1.0},
    YARN | {"beta_slow": 0},
    YARN | {"factor": 1.0},
    YARN | {"factor": 0.5},
    YARN | {"rope_theta": 777.0},
    YARN | {"rope_theta": None},
    YARN | {"partial_rotary_factor": 0.5},
    YARN | {"type": "default"},
    YARN | {"attention_factor": None, "beta_fast": None, "truncate": None},
    YARN | {"a_key_of_the_future": 3},
    {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", "original_max_position_embeddings": 32},
    {"rope_type": "yarn"},
    {"rope_type": "default"},
    {"rope_type": "default", "factor": 4.0},
    {"rope_type": "default", "rope_theta": 777.0},
    {"rope_type": "default", "rope_theta": 777.0, "partial_rotary_factor": 0.5},
    {"rope_theta": 777.0},
    {"type": "default", "mrope_section": [2, 1, 1]},
    {"rope_type": "linear", "factor": 2.0},
    {"type": "linear", "factor": 2.0, "rope_theta": 10000.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 32, "rope_theta": 500.0},
    {"rope_type": "longrope", "factor": 4.0, "long_factor": [1.0] * 8, "original_max_position_embeddings": 32, "short_factor": [1.0] * 8},
    {"rope_type": "proportional", "rope_theta": 777.0, "partial_rotary_factor": 0.5},
    {"rope_type": "no_such_type"},
    {},
    {"sliding_attention": {"rope_type": "default", "rope_theta": 777.0}, "full_attention": {"rope_type": "default", "rope_theta": 555.0}},
    {"full_attention": {"rope_type": "proportional", "rope_theta": 555.0, "partial_rotary_factor": 0.5}},
    {"sliding_attention": {"rope_type": "default", "rope_theta": 777.0}},
    {"sliding_attention": {"rope_type": "default"}, "full_attention": {"rope_type": "default"}},
    {"sliding_attention": {"rope_type": "default", "rope_theta": 777.0}, "full_attention": YARN | {"rope_theta": 555.0}},
]
SWITCH = [True, False]
SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"

VALUES = {
    "a_switch_of_the_future": [True, False, "on", 0.5],
    "architectures": [[], ["LlamaForCausalLM"], ["Qwen3MoeForCausalLM", "LlamaForCausalLM"]],
    "attention_bias": SWITCH,
    "attention_chunk_size": [8],
    "attention_dropout": [0.7],
    "attention_k_eq_v": SWITCH,
    "attention_multiplier": [0.1, -0.2, 0, 3],
    "attn_logit_softcapping": [2.0],
    "attn_output_gate": SWITCH,
    "attn_temperature_tuning": SWITCH,
    "block_auto_adjust_ff_dim": SWITCH,
    "block_dim": [40, 48],
    "block_ff_dim": [30, 48, 64, 1, 0],
    "block_ffn_dim_multiplier": [0.4, 1.3, 2, 0, -1.0],
    "block_multiple_of": [1, 20, 0],
    "block_norm_eps": [1e-3],
    "block_use_swiglu": SWITCH,
    "bos_token_id": [5, 9999, -1],
    "clip_qkv": [0.4],
    "conv_L_cache": [1, 2, 5, 0],
    "conv_bias": SWITCH,
    "conv_dim": [40, 48],
    "decoder_sparse_step": [0, 1, 2, 3],
    "dtype": ["float16", "bfloat16", "float8_e4m3fn"],
    "embedding_multiplier": [3.5, -1.0, 0, 2],
    "enable_moe_block": SWITCH,
    "eos_token_id": [[3, 4], 9999, -1, []],
    "ep_size": [4],
    "experts_per_token": [1, 3],
    "final_logit_softcapping": [3.0, 30, 0],
    "first_k_dense_replace": [0, 1, 2, 9],
    "first_last_k_dense_replace": [0, 1, 2],
    "full_attn_idxs": [[0], [1], [], [0, 1], [7]],
    "full_attention_interval": [1, 2, 3, 0],
    "gating": [True, False, "per-head", "per-element", "per_head", None],
    "gating_types": [["per_head"], ["per_head", "per_head"], ["per_element", "per_element"], ["per_head", "per_element"]],
    "global_attn_every_n_layers": [1, 2, 3, 0],
    "global_head_dim": [16, 24],
    "head_dim": [8, 10, 16, 15, 0],
    "hidden_act": ["gelu", "swish", "relu", "gelu_pytorch_tanh"],
    "hidden_activation": ["silu", "gelu", "gelu_pytorch_tanh"],
    "hidden_dropout": [0.5],
    "hidden_size_per_layer_input": [0, 8],
    "index_head_dim": [8, 12, 4],
    "index_n_heads": [1, 3, 0],
    "index_skip_topk_offset": [1, 3, 0],
    "index_topk": [200, 2048, 0],
    "index_topk_freq": [2, 4, 0],
    "index_topk_pattern": ["FS", "FF", "SF", "F", "FX", ["full", "shared"]],
    "indexer_rope_interleave": SWITCH,
    "indexer_types": [["full", "shared"], ["full", "full"], ["shared", "full"], ["full"], ["full", "odd"]],
    "initial_context_length": [16],
    "initializer_range": [0.5],
    "is_causal": SWITCH,
    "is_decoder": SWITCH,
    "is_moe_layer": [[False, True], [True, True]],
    "layer_types": [
        [FULL, FULL], [SLIDING, SLIDING], [SLIDING, FULL], [FULL, SLIDING], [LINEAR, FULL], [FULL, LINEAR],
        [LINEAR, LINEAR], ["conv", FULL], [FULL, "conv"], ["conv", "conv"], [FULL], [], ["chunked_attention", FULL],
    ],
    "logit_scale": [0.5],
    "logits_scaling": [3.5, -1.0, 0],
    "hybrid_override_pattern": ["ME*-", "M*M-", "*", "EM", "MEE", "MX", ""],
    "layers_block_type": [["mamba", "moe"], ["mamba", "attention", "mlp", "mamba"], ["moe", "mamba"], ["mamba", "conv"], []],
    "layer_norm_epsilon": [1e-3, 1e-9, 0.0],
    "mamba_chunk_size": [4, 256, 0],
    "mamba_conv_bias": SWITCH,
    "mamba_d_conv": [1, 2, 7, 17],
    "mamba_d_head": ["auto", 10, 20, 64],
    "mamba_d_state": [4, 24, 0],
    "mamba_expand": [1, 3],
    "mamba_head_dim": [4, 12, 64],
    "mamba_hidden_act": ["silu", "gelu"],
    "mamba_n_groups": [1, 2, 3, 4],
    "mamba_n_heads": [2, 4, 8],
    "mamba_proj_bias": SWITCH,
    "max_position_embeddings": [64, 4096, 200000, 0],
    "max_window_layers": [0, 1],
    "mamba_num_heads": [2, 3, 6],
    "mlp_bias": SWITCH,
    "mlp_layer_types": [["dense", "sparse"], ["sparse", "dense"], ["sparse", "sparse"], ["sparse"], ["dense", "odd"]],
    "mlp_only_layers": [[0], [1], [0, 1], [9]],
    "model_type": ["llama", "mixtral", "qwen3_moe"],
    "moe_apply_router_weight_on_input": SWITCH,
    "moe_intermediate_size": [10],
    "moe_k": [1, 3, 5, 17, 0],
    "moe_layer_end_index": [-1, 0, 1, 9],
    "moe_layer_freq": [1, 2],
    "moe_layer_interval": [1, 2, 0],
    "moe_layer_start_index": [0, 1, 2, 9],
    "moe_norm_min": [1e-12, 0.5, 0],
    "moe_num_shared_experts": [0, 1, 2],
    "moe_routed_scaling_factor": [3.3, 1, 0, -1.5],
    "moe_router_logit_softcapping": [5.0, 0, -1.0],
    "mtp_num_hidden_layers": [0, 3],
    "mlp_hidden_act": ["relu2", "silu", "gelu"],
    "moe_latent_size": [16, 8],
    "moe_shared_expert_intermediate_size": [12, 40, 0],
    "mup_enabled": SWITCH,
    "n_group": [1, 2, 3, 4],
    "n_groups": [1, 2, 3, 4],
    "n_shared_experts": [0, 1, 2],
    "norm_eps": [1e-3, 1e-9, 0.0],
    "norm_topk_prob": SWITCH,
    "num_attention_heads_per_layer": [[4, 4], [6, 2], [4], [4, 5], [4, 0]],
    "num_dense_layers": [0, 2, 5],
    "normalization_function": ["rmsnorm", "layernorm"],
    "num_attention_heads": [2, 3],
    "num_expert_groups": [1, 2],
    "num_experts_per_tok": [1, 3, 5, 17, 0],
    "num_global_key_value_heads": [1, 2],
    "num_hidden_layers": [1, 3],
    "num_key_value_heads": [1, 2, 3, 4],
    "num_kv_shared_layers": [0, 1],
    "num_mtp_layers": [0, 2],
    "num_limited_groups": [1, 2],
    "num_nextn_predict_layers": [0, 2],
    "num_shared_experts": [0, 1, 2],
    "original_max_position_embeddings": [32],
    "output_hidden_states": [True],
    "output_router_logits": [True],
    "pad_token_id": [3, 95, -1, 9999],
    "partial_rotary_factor": [0.5, 1.0, 1, 0.25, 0.75],
    "per_layer_config": [
        {"1": {"head_dim": 24, "num_key_value_heads": 1}}, {"1": {"head_dim": 32}}, {"0": {"head_dim": 8}},
        {"1": {"sliding_window": 7}}, {"00001": {"head_dim": 24, "num_key_value_heads": 1}}, {},
        {"0": {"sliding_window": 7}, "1": {"head_dim": 24, "num_key_value_heads": 1}},
        {"0": {"num_experts": 3}, "1": {"head_dim": 24, "num_key_value_heads": 1}},
        {"7": {"head_dim": 24}},
    ],
    "position_embedding_type": ["rope", "nope", None, "alibi"],
    "pretraining_tp": [2],
    "q_lora_rank": [12, 0],
    "qk_head_dim": [20, 30],
    "qkv_bias": SWITCH,
    "quantization_config": [
        {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
        {"bits": 4, "group_size": 128, "quant_method": "awq"},
        {"quant_method": "no_such_method"},
    ],
    "residual_multiplier": [0.3, -1.0, 0, 2],
    "query_pre_attn_scalar": [16, 144.0, 0, -4],
    "return_dict": [False],
    "rms_norm_eps": [1e-3, 1e-9, 0.0, 1, -1e-6, "1e-5"],
    "rope_interleave": SWITCH,
    "rope_local_base_freq": [500.0, 777, 1, 0],
    "rope_parameters": ROPES,
    "rope_scaling": ROPES,
    "rope_theta": [500.0, 777, 1, 0, -10000.0, "10000", 1e18],
    "route_norm": SWITCH,
    "route_scale": [3.3, 1, 0, -1.5],
    "routed_scaling_factor": [3.3, 1, 0, -1.5],
    "rotary_dim": [8, 16, 7],
    "router_jitter_noise": [0.3],
    "scale_attn_weights": SWITCH,
    "score_func": ["softmax", "sigmoid"],
    "scoring_func": ["softmax", "sigmoid", "sqrtsoftplus"],
    "shared_intermediate_size": [0, 28, 30],
    "shared_expert_intermediate_size": [0, 28, 30],
    "sliding_window": [1, 5, 64, 128, 0, -3],
    "sliding_window_pattern": [1, 2, 6, 0, "LLLG"],
    "swiglu_alpha": [1.0, 3, 0, -1.0],
    "swiglu_limit": [1.0, 3, 0],
    "tie_word_embeddings": SWITCH,
    "ssm_state_size": [4, 24, 0],
    "time_step_limit": [[0.0, 0.1], [0.001, 0.2]],
    "time_step_min": [0.0001, 0.0, 0.5],
    "use_conv_bias": SWITCH,
    "top_k_experts": [1, 3, 5, 17, 0],
    "topk_group": [1, 2, 3],
    "topk_method": ["greedy", "group_limited_greedy", "noaux_tc", "gready"],
    "torch_dtype": ["float16", "bfloat16"],
    "use_bias": SWITCH,
    "use_bidirectional_attention": ["all", "vision", True],
    "use_cache": [False],
    "use_double_wide_mlp": SWITCH,
    "use_qk_norm": SWITCH,
    "use_sliding_window": SWITCH,
    "vocab_size": [88, 100],
    "vocab_size_per_layer_input": [7],
}

# The same key under the other names that some class of transformers takes.
ALIASES = {
    "num_experts": ["num_local_experts", "n_routed_experts"],
    "num_local_experts": ["num_experts", "n_routed_experts"],
    "n_routed_experts": ["num_local_experts", "num_experts"],
    "num_experts_per_tok": ["experts_per_token", "top_k_experts"],
    "top_k_experts": ["num_experts_per_tok"],
    "hidden_act": ["hidden_activation"],
    "hidden_activation": ["hidden_act"],
    "num_nextn_predict_layers": ["num_mtp_layers"],
    "torch_dtype": ["dtype"],
    "dtype": ["torch_dtype"],
    "qk_rope_head_dim": ["head_dim"],
    "rms_norm_eps": ["layer_norm_epsilon"],
    "max_position_embeddings": ["max_sequence_length"],
}

# Several keys that have to do with each other.
TOGETHER = [
    {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 2},
    {"use_sliding_window": False, "sliding_window": 20, "max_window_layers": 0},
    {"layer_types": [SLIDING, FULL], "sliding_window": 5},
    {"layer_types": [SLIDING, SLIDING], "sliding_window": None},
    {"layer_types": [FULL, FULL], "sliding_window": None},
    {"layer_types": ABSENT, "full_attention_interval": ABSENT},
    {"layer_types": ABSENT, "full_attention_interval": 1},
    {"layer_types": ABSENT, "sliding_window": 5},
    {"layer_types": ABSENT, "sliding_window": None},
    {"rope_theta": ABSENT, "rope_scaling": ABSENT, "rope_parameters": ABSENT},
    {"rope_theta": ABSENT, "rope_scaling": YARN, "rope_parameters": ABSENT},
    {"rope_theta": ABSENT, "rope_scaling": ABSENT, "rope_parameters": YARN},
    {"rope_theta": 500.0, "rope_scaling": ABSENT, "rope_parameters": YARN},
    {"rope_theta": 500.0, "rope_scaling": ABSENT, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    {"rope_theta": 500.0, "rope_scaling": ABSENT, "rope_parameters": {"rope_type": "default", "rope_theta": 600.0}},
    {"rope_theta": ABSENT, "rope_scaling": YARN, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    {"rope_theta": 500.0, "rope_scaling": YARN, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    {"rope_theta": 500.0, "rope_scaling": YARN, "rope_parameters": YARN | {"rope_theta": 500.0}},
    {"rope_theta": 500.0, "rope_scaling": YARN, "rope_parameters": YARN | {"factor": 2.0, "rope_theta": 500.0}},
    {"rope_theta": 500.0, "rope_scaling": None, "rope_parameters": YARN | {"rope_theta": 500.0}},
    {"rope_theta": 500.0, "rope_scaling": {}, "rope_parameters": YARN | {"rope_theta": 500.0}},
    {"rope_theta": ABSENT, "rope_scaling": {"rope_type": "default"}, "rope_parameters": YARN | {"rope_theta": 500.0}},
    {"partial_rotary_factor": 0.5, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25}, "rope_theta": ABSENT, "rope_scaling": ABSENT},
    {"partial_rotary_factor": 0.5, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "rope_theta": ABSENT, "rope_scaling": ABSENT},
    {"partial_rotary_factor": 0.5, "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32}, "rope_parameters": ABSENT},
    {"partial_rotary_factor": ABSENT, "rope_parameters": ABSENT, "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32, "partial_rotary_factor": 0.5}},
    {"max_position_embeddings": 64, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    {"max_position_embeddings": 64, "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 500.0}, "rope_scaling": ABSENT, "rope_theta": ABSENT},
    {"num_key_value_heads": ABSENT, "num_attention_heads": ABSENT},
    {"global_head_dim": ABSENT, "num_global_key_value_heads": ABSENT},
    {"global_head_dim": ABSENT, "num_global_key_value_heads": ABSENT, "per_layer_config": {"1": {"head_dim": 24, "num_key_value_heads": 1}}},
    {"global_head_dim": ABSENT, "num_global_key_value_heads": ABSENT, "per_layer_config": {"01": {"head_dim": 24, "num_key_value_heads": 1}}},
    {"global_head_dim": ABSENT, "num_global_key_value_heads": ABSENT, "per_layer_config": {"0": {"head_dim": 8}, "1": {"head_dim": 24}}},
    {"global_head_dim": ABSENT, "num_global_key_value_heads": ABSENT, "per_layer_config": {}},
    {"attention_k_eq_v": False, "num_global_key_value_heads": ABSENT},
    {"attention_k_eq_v": False, "num_global_key_value_heads": 2},
    {"attention_k_eq_v": ABSENT, "num_global_key_value_heads": ABSENT},
    {"n_group": ABSENT, "topk_group": ABSENT},
    {"n_group": None, "topk_group": None},
    {"n_group": 1, "topk_group": 1},
    {"topk_method": "greedy", "n_group": 3, "topk_group": 2},
    {"topk_method": ABSENT, "n_group": 3, "topk_group": 2},
    {"mlp_layer_types": ABSENT, "first_k_dense_replace": 0},
    {"mlp_layer_types": ["sparse", "sparse"], "first_k_dense_replace": 1},
    {"decoder_sparse_step": 2, "mlp_only_layers": []},
    {"decoder_sparse_step": 2, "mlp_only_layers": [0]},
]


def numbers_of(value: object, legal: object) -> list:
    """What stands for a key with no values of its own."""
    if isinstance(legal, bool):
        return [not legal]
    if isinstance(legal, int):
        return [legal * 2, 0]
    if isinstance(legal, float):
        return [legal * 2, 0.0]
    return []


def changes_of(family: Family) -> list[dict]:
    """Every change of one key, or of few, that the family is tried with."""
    config = family.text_of(family.config)
    out = []
    for key in sorted(config):
        out += [{key: ABSENT}] + ([{key: None}] if config[key] is not None else [])
        others = VALUES.get(key) or numbers_of(key, config[key])
        out += [{key: value} for value in others if value != config[key] or type(value) is not type(config[key])]
        out += [{key: ABSENT, other: config[key]} for other in ALIASES.get(key, [])]
        if config[key] is not None:
            out += [{other: config[key]} for other in ALIASES.get(key, []) if other not in config]
    for key in sorted(VALUES.keys() - config.keys()):
        out += [{key: value} for value in VALUES[key]]
    out += TOGETHER
    if family.text:
        # The same keys outside of the text part.
        outer = [{"tie_word_embeddings": True}, {"tie_word_embeddings": False}, {"tie_word_embeddings": ABSENT}]
        # What sees and hears is left out here, whatever it is.
        others = {"audio_config", "tie_word_embeddings", "vision_config"}
        outer += [{key: ABSENT} for key in sorted(family.config.keys() - others)]
        outer += [{"rope_theta": 500.0}, {"rms_norm_eps": 1e-3}, {"sliding_window": 5}, {"num_experts_per_tok": 1}]
        outer += [{"eos_token_id": 3}, {"pad_token_id": 3}, {"a_switch_of_the_future": True}, {"rope_scaling": YARN}, {"rope_parameters": YARN}]
        outer += [{"quantization_config": value} for value in VALUES["quantization_config"]]
        out += [{"": change} for change in outer]
    seen, unique = set(), []
    for change in out:
        if repr(change) not in seen:
            seen.add(repr(change))
            unique.append(change)
    return unique


__all__ = ["changes_of", "POSITIONS"]
