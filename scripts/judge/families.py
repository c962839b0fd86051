"""The families: a tiny configuration of each, and how shapes and switches of it are drawn.

A configuration is what config.json would hold. `text` is the path to the keys of the language model:
("text_config",) for a model of text and images, else ().
"""
import copy
import dataclasses
import pathlib
import random
import sys
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "families"))
import qwen3_omni_moe  # noqa: E402
import qwen3_vl_moe  # noqa: E402

# Stands for a key that is left out.
ABSENT = "\0absent"
POSITIONS = 512
VOCABULARY = 96


@dataclasses.dataclass(frozen=True)
class Family:
    name: str
    config: dict
    draw: Callable[[random.Random], dict]
    text: tuple[str, ...] = ()
    # How experts lie in files: as transformers saves them, fused, or in MXFP4; the first for what is changed.
    layouts: tuple[str, ...] = ("saved",)
    # Only drawn: keys of the class that stands in are not those of the family.
    is_drawn_only: bool = False

    def text_of(self, config: dict) -> dict:
        for key in self.text:
            config = config[key]
        return config

    def drawn(self, rng: random.Random) -> dict:
        """The configuration with other shapes and switches."""
        config = copy.deepcopy(self.config)
        patch(self.text_of(config), self.draw(rng))
        return config


def patch(config: dict, changes: dict) -> dict:
    for key, value in changes.items():
        if value == ABSENT:
            config.pop(key, None)
        else:
            config[key] = value
    return config


def yarn(rng: random.Random) -> dict:
    """YaRN as configurations have it, with some of its keys left out."""
    factor = rng.choice([1.5, 2, 4.0, 8, 16.0])
    rope = {rng.choice(["type", "rope_type"]): "yarn", "factor": factor, "original_max_position_embeddings": rng.choice([16, 32, 64])}
    options = {
        "beta_fast": [32, 8.0, 16, 3],
        "beta_slow": [1, 2.0, 0.5],
        "truncate": [False, True],
        "attention_factor": [1.3, 0.7],
        "mscale": [1.0, 0.707, 0.5],
        "mscale_all_dim": [1.0, 0.707],
    }
    for key in rng.sample(sorted(options), rng.randint(0, 3)):
        rope[key] = rng.choice(options[key])
    return rope


def positions(rng: random.Random, partial: float | None = None) -> dict:
    """Rotary positions in the layout of transformers 4 or 5."""
    theta = rng.choice([500.0, 10000, 1e6, 31415.0])
    rope = yarn(rng) if rng.random() < 0.4 else None
    if rng.random() < 0.5:
        rope = (rope or {"rope_type": "default"}) | {"rope_theta": theta}
        if partial is not None:
            rope["partial_rotary_factor"] = partial
        return {"rope_parameters": rope, "rope_theta": ABSENT, "rope_scaling": ABSENT, "partial_rotary_factor": ABSENT}
    changes = {"rope_theta": theta, "rope_scaling": rope, "rope_parameters": ABSENT}
    return changes if partial is None else changes | {"partial_rotary_factor": partial}


def heads(rng: random.Random, own_width: bool = True) -> dict:
    """Heads of attention; without a width of their own they share the hidden size."""
    groups = rng.choice([1, 2, 3])
    count = groups * rng.choice([1, 1, 2, 3, 5, 7])
    if own_width:
        return {
            "num_attention_heads": count,
            "num_key_value_heads": groups,
            "head_dim": rng.choice([8, 10, 16, 22, 32]),
            "hidden_size": rng.choice([24, 30, 40, 46]),
        }
    count = min(count, 6) // groups * groups or groups
    return {
        "num_attention_heads": count,
        "num_key_value_heads": groups,
        "hidden_size": count * rng.choice([6, 8, 10, 12] if count > 1 else [20, 24, 32]),
    }


def common(rng: random.Random) -> dict:
    return {
        "tie_word_embeddings": rng.random() < 0.3,
        "rms_norm_eps": rng.choice([1e-6, 1e-5, 1e-4, 1e-3]),
        "dtype": rng.choice(["float32", "bfloat16", "float16"]),
    }


def experts(rng: random.Random, count_key: str, chosen_key: str = "num_experts_per_tok") -> dict:
    count = rng.choice([3, 5, 8, 9])
    return {count_key: count, chosen_key: rng.choice([1, 2, 3, count])}


def sparse_layers(rng: random.Random) -> dict:
    kind = rng.choice(["all", "step", "list", "both"])
    return {
        "num_hidden_layers": rng.choice([2, 3, 4]),
        "decoder_sparse_step": rng.choice([2, 3]) if kind in ("step", "both") else 1,
        "mlp_only_layers": rng.choice([[0], [1], [0, 1]]) if kind in ("list", "both") else [],
    }


SHARED = {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": POSITIONS,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": VOCABULARY,
}


def qwen3_moe(rng):
    changes = common(rng) | heads(rng) | positions(rng) | experts(rng, "num_experts") | sparse_layers(rng)
    return changes | {"norm_topk_prob": rng.random() < 0.5, "attention_bias": rng.random() < 0.4, "moe_intermediate_size": rng.choice([10, 20])}


QWEN3_MOE = Family("qwen3_moe", SHARED | {
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "bos_token_id": 1, "decoder_sparse_step": 1,
    "eos_token_id": 2, "head_dim": 16, "hidden_size": 40, "intermediate_size": 48, "max_window_layers": 3,
    "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 20, "norm_topk_prob": True,
    "num_attention_heads": 4, "num_experts": 5, "num_experts_per_tok": 2, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "output_router_logits": False, "rope_scaling": None, "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001, "sliding_window": None, "torch_dtype": "float32", "use_sliding_window": False,
}, qwen3_moe)


def qwen2_moe(rng):
    changes = common(rng) | heads(rng, own_width=False) | positions(rng) | experts(rng, "num_experts") | sparse_layers(rng)
    return changes | {
        "norm_topk_prob": rng.random() < 0.5, "qkv_bias": rng.choice([True, False, ABSENT]),
        "shared_expert_intermediate_size": rng.choice([12, 52]),
    }


QWEN2_MOE = Family("qwen2_moe", SHARED | {
    "architectures": ["Qwen2MoeForCausalLM"], "bos_token_id": 1, "decoder_sparse_step": 1, "eos_token_id": 2,
    "hidden_size": 40, "intermediate_size": 48, "max_window_layers": 3, "mlp_only_layers": [1],
    "model_type": "qwen2_moe", "moe_intermediate_size": 20, "norm_topk_prob": False, "num_attention_heads": 4,
    "num_experts": 5, "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_key_value_heads": 2,
    "output_router_logits": False, "qkv_bias": True, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 28, "sliding_window": 32768, "torch_dtype": "float32",
    "use_sliding_window": False,
}, qwen2_moe)


def delta_net(rng):
    keys = rng.choice([1, 2, 3])
    layers = rng.choice([2, 3, 4])
    types = rng.choice([ABSENT, [rng.choice(["linear_attention", "full_attention"]) for _ in range(layers)]])
    return {
        "num_hidden_layers": layers, "layer_types": types, "full_attention_interval": rng.choice([2, 3, 4]),
        "linear_num_key_heads": keys, "linear_num_value_heads": keys * rng.choice([1, 2, 3, 5]),
        "linear_key_head_dim": rng.choice([8, 12, 16]), "linear_value_head_dim": rng.choice([8, 20]),
        "linear_conv_kernel_dim": rng.choice([2, 3, 4, 6]), "attention_bias": rng.random() < 0.3,
        "shared_expert_intermediate_size": rng.choice([12, 28]),
    }


def qwen3_next(rng):
    partial = rng.choice([0.25, 0.5, 1.0])
    changes = common(rng) | heads(rng) | {"head_dim": rng.choice([8, 16, 32])} | positions(rng, partial)
    changes |= experts(rng, "num_experts") | sparse_layers(rng) | delta_net(rng)
    return changes | {"norm_topk_prob": rng.random() < 0.5}


QWEN3_NEXT = Family("qwen3_next", SHARED | {
    "architectures": ["Qwen3NextForCausalLM"], "attention_bias": False, "bos_token_id": 1, "decoder_sparse_step": 1,
    "eos_token_id": 2, "full_attention_interval": 2, "head_dim": 16, "hidden_size": 40, "intermediate_size": 48,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 12, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_value_head_dim": 20, "mlp_only_layers": [], "model_type": "qwen3_next", "moe_intermediate_size": 20,
    "norm_topk_prob": True, "num_attention_heads": 4, "num_experts": 5, "num_experts_per_tok": 2,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "output_router_logits": False, "partial_rotary_factor": 0.25,
    "rope_scaling": None, "rope_theta": 10000000, "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 28, "torch_dtype": "float32", "use_sliding_window": False,
}, qwen3_next)


def qwen3_5_moe(rng):
    changes = common(rng) | heads(rng) | {"head_dim": rng.choice([8, 16, 32])}
    changes |= positions(rng, rng.choice([0.25, 0.5, 1.0])) | experts(rng, "num_experts") | delta_net(rng)
    rope = changes.get("rope_parameters")
    if rope != ABSENT and rng.random() < 0.5:
        rope |= {"mrope_interleaved": True, "mrope_section": [2, 1, 1]}
    return changes


QWEN3_5_TEXT = SHARED | {
    "attention_bias": False, "attn_output_gate": True, "dtype": "float32", "eos_token_id": 2,
    "full_attention_interval": 2, "head_dim": 16, "hidden_size": 40,
    "layer_types": ["linear_attention", "full_attention"], "linear_conv_kernel_dim": 4, "linear_key_head_dim": 12,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 20,
    "mamba_ssm_dtype": "float32", "mlp_only_layers": [], "model_type": "qwen3_5_moe_text",
    "moe_intermediate_size": 20, "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
    "num_attention_heads": 4, "num_experts": 5, "num_experts_per_tok": 2, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "rope_parameters": {
        "mrope_interleaved": True, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25,
        "rope_theta": 10000000, "rope_type": "default",
    }, "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 28,
}
QWEN3_5_MOE = Family("qwen3_5_moe", {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"], "image_token_id": 90, "model_type": "qwen3_5_moe",
    "text_config": QWEN3_5_TEXT, "tie_word_embeddings": False, "video_token_id": 91,
    "vision_config": {
        "deepstack_visual_indexes": [], "depth": 1, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 16,
        "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 16, "model_type": "qwen3_5_moe_vision",
        "num_heads": 2, "num_position_embeddings": 16, "out_hidden_size": 40, "patch_size": 2,
        "spatial_merge_size": 2, "temporal_patch_size": 2,
    }, "vision_end_token_id": 93, "vision_start_token_id": 92,
}, qwen3_5_moe, ("text_config",), ("fused", "saved"))
QWEN3_5_MOE_TEXT = Family(
    "qwen3_5_moe_text", QWEN3_5_TEXT | {"architectures": ["Qwen3_5MoeForCausalLM"]}, qwen3_5_moe, (), ("fused", "saved"),
)


def olmoe(rng):
    changes = common(rng) | heads(rng, own_width=False) | positions(rng) | experts(rng, "num_experts")
    return changes | {"norm_topk_prob": rng.random() < 0.5, "attention_bias": rng.random() < 0.4}


OLMOE = Family("olmoe", SHARED | {
    "architectures": ["OlmoeForCausalLM"], "attention_bias": False, "clip_qkv": None, "eos_token_id": 2,
    "hidden_size": 48, "intermediate_size": 20, "model_type": "olmoe", "norm_topk_prob": False,
    "num_attention_heads": 4, "num_experts": 5, "num_experts_per_tok": 2, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "output_router_logits": False, "pad_token_id": 1, "rms_norm_eps": 1e-5,
    "rope_scaling": None, "rope_theta": 10000.0, "router_aux_loss_coef": 0.01, "torch_dtype": "float32",
}, olmoe)


def mixtral(rng):
    changes = common(rng) | heads(rng) | positions(rng) | experts(rng, "num_local_experts")
    return changes | {"sliding_window": rng.choice([None, 1, 17, 64, ABSENT])}


MIXTRAL = Family("mixtral", SHARED | {
    "architectures": ["MixtralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 40,
    "intermediate_size": 36, "model_type": "mixtral", "num_attention_heads": 4, "num_experts_per_tok": 2,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "num_local_experts": 5, "output_router_logits": False,
    "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "router_jitter_noise": 0.0,
    "sliding_window": None, "torch_dtype": "float32",
}, mixtral)


def granite(rng):
    changes = common(rng) | heads(rng, own_width=False) | positions(rng) | experts(rng, "num_local_experts")
    return changes | {
        "attention_bias": rng.random() < 0.5, "attention_multiplier": rng.choice([0.1, 0.3, -0.2, 1]),
        "embedding_multiplier": rng.choice([1.75, 12, -1.5]), "logits_scaling": rng.choice([0.25, 1, -2.0]),
        "residual_multiplier": rng.choice([0.22, 0.7, 1, -0.5]),
    }


GRANITE = Family("granitemoe", SHARED | {
    "architectures": ["GraniteMoeForCausalLM"], "attention_bias": False, "attention_multiplier": 0.25,
    "bos_token_id": 0, "embedding_multiplier": 1.75, "eos_token_id": 0, "hidden_size": 40, "intermediate_size": 20,
    "logits_scaling": 0.5, "model_type": "granitemoe", "num_attention_heads": 4, "num_experts_per_tok": 2,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "num_local_experts": 5, "output_router_logits": False,
    "pad_token_id": 0, "residual_multiplier": 0.6, "rope_scaling": None, "rope_theta": 10000,
    "router_aux_loss_coef": 0.0, "torch_dtype": "float32",
}, granite)


def latent(rng):
    count = rng.choice([2, 3, 5, 7])
    groups, size = rng.choice([(1, 5), (1, 9), (3, 3), (4, 2), (5, 2), (2, 4)])
    chosen_groups = rng.randint(1, groups)
    return {
        "hidden_size": count * rng.choice([8, 12]), "num_attention_heads": count, "num_key_value_heads": count,
        "q_lora_rank": rng.choice([None, 20, 28]), "kv_lora_rank": rng.choice([12, 24]),
        "qk_nope_head_dim": rng.choice([6, 12, 20]), "qk_rope_head_dim": rng.choice([4, 8, 10]),
        "v_head_dim": rng.choice([6, 12, 20]), "n_group": groups, "topk_group": chosen_groups,
        "n_routed_experts": groups * size, "num_experts_per_tok": rng.randint(1, chosen_groups * size),
        "n_shared_experts": rng.choice([1, 2, 3]), "num_hidden_layers": 3,
        "routed_scaling_factor": rng.choice([1.0, 2.5, 0.4]),
    }


def deepseek_v2(rng):
    changes = common(rng) | latent(rng) | positions(rng)
    return changes | {
        "topk_method": rng.choice(["greedy", "group_limited_greedy"]), "first_k_dense_replace": rng.choice([0, 1, 2]),
    }


LATENT = SHARED | {
    "attention_bias": False, "bos_token_id": 0, "eos_token_id": 1, "first_k_dense_replace": 1, "hidden_size": 40,
    "intermediate_size": 48, "kv_lora_rank": 24, "moe_intermediate_size": 20, "moe_layer_freq": 1, "n_group": 2,
    "n_routed_experts": 6, "n_shared_experts": 1, "norm_topk_prob": False, "num_attention_heads": 4,
    "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_key_value_heads": 4, "pretraining_tp": 1,
    "q_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "rope_scaling": None, "rope_theta": 10000,
    "routed_scaling_factor": 1.5, "topk_group": 1, "v_head_dim": 12,
}
DEEPSEEK_V2 = Family("deepseek_v2", LATENT | {
    "architectures": ["DeepseekV2ForCausalLM"], "aux_loss_alpha": 0.001, "ep_size": 1, "model_type": "deepseek_v2",
    "scoring_func": "softmax", "seq_aux": True, "topk_method": "group_limited_greedy", "torch_dtype": "float32",
}, deepseek_v2)


def glm(rng):
    changes = common(rng) | latent(rng) | positions(rng)
    # The two best of a group are summed.
    if changes["n_routed_experts"] == 9 and changes["n_group"] == 1:
        changes["n_routed_experts"] = 8
    return changes | {
        "norm_topk_prob": rng.random() < 0.5, "rope_interleave": rng.choice([True, False, ABSENT]),
        "mlp_layer_types": rng.choice([ABSENT, ["sparse", "dense", "sparse"], ["dense", "dense", "sparse"]]),
    }


GLM = Family("glm4_moe_lite", LATENT | {
    "architectures": ["Glm4MoeLiteForCausalLM"], "dtype": "float32", "eos_token_id": [2, 0],
    "model_type": "glm4_moe_lite", "norm_topk_prob": True, "num_nextn_predict_layers": 1, "pad_token_id": 0,
    "partial_rotary_factor": 1.0, "rms_norm_eps": 1e-5, "rope_theta": 1000000, "routed_scaling_factor": 1.8,
    "topk_method": "noaux_tc",
}, glm)


def deepseek_v3(rng):
    changes = common(rng) | latent(rng) | positions(rng)
    return changes | {
        "norm_topk_prob": rng.random() < 0.5, "rope_interleave": rng.choice([True, False, ABSENT]),
        "first_k_dense_replace": rng.choice([0, 1, 2]),
    }


DEEPSEEK_V3 = Family("deepseek_v3", LATENT | {
    "architectures": ["DeepseekV3ForCausalLM"], "aux_loss_alpha": 0.001, "ep_size": 1, "model_type": "deepseek_v3",
    "norm_topk_prob": True, "num_nextn_predict_layers": 1, "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 4, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 32, "type": "yarn",
    }, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": True, "topk_method": "noaux_tc",
    "torch_dtype": "float32",
}, deepseek_v3)


def deepseek_v32(rng):
    changes = common(rng) | latent(rng) | positions(rng)
    dense = rng.choice([0, 1, 2])
    kinds = [rng.choice(["dense", "sparse"]) for _ in range(3)]
    return changes | {
        "q_lora_rank": rng.choice([20, 28]), "norm_topk_prob": rng.random() < 0.5, "rope_interleave": rng.choice([True, ABSENT]),
        "index_head_dim": rng.choice([10, 16]), "index_n_heads": rng.choice([1, 3]), "index_topk": rng.choice([200, 1000]),
    } | rng.choice([{"first_k_dense_replace": dense}, {"mlp_layer_types": kinds}, {"first_k_dense_replace": dense, "mlp_layer_types": kinds}])


def glm_moe_dsa(rng):
    shared = rng.choice([
        {}, {"index_topk_freq": rng.choice([1, 2, 4]), "index_skip_topk_offset": rng.choice([1, 2, 3])},
        {"indexer_types": ["full", rng.choice(["full", "shared"]), "shared"]}, {"index_topk_pattern": rng.choice(["FSS", "FFS", "FFF"])},
    ])
    return deepseek_v32(rng) | shared | {"head_dim": rng.choice([8, 24, ABSENT]), "qk_head_dim": ABSENT}


DEEPSEEK_V32 = Family("deepseek_v32", {key: value for key, value in DEEPSEEK_V3.config.items() if key not in ("aux_loss_alpha", "seq_aux")} | {
    "architectures": ["DeepseekV32ForCausalLM"], "index_head_dim": 16, "index_n_heads": 2, "index_topk": 256, "model_type": "deepseek_v32",
}, deepseek_v32)
GLM_MOE_DSA = Family("glm_moe_dsa", {key: value for key, value in DEEPSEEK_V32.config.items() if key not in ("rope_scaling", "rope_theta")} | {
    "architectures": ["GlmMoeDsaForCausalLM"], "head_dim": 8, "index_skip_topk_offset": 2, "index_topk_freq": 1, "indexer_rope_interleave": True,
    "model_type": "glm_moe_dsa", "qk_head_dim": 20, "rope_interleave": True, "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
}, glm_moe_dsa)


def routed(rng):
    """DeepSeek-V3's experts beside ordinary attention."""
    groups, size = rng.choice([(1, 5), (1, 8), (3, 3), (4, 2), (5, 2), (2, 4)])
    chosen_groups = rng.randint(1, groups)
    return {
        "n_group": groups, "topk_group": chosen_groups, "n_routed_experts": groups * size,
        "num_experts_per_tok": rng.randint(1, chosen_groups * size), "n_shared_experts": rng.choice([1, 2, 3]),
        "norm_topk_prob": rng.random() < 0.5, "num_hidden_layers": 3, "routed_scaling_factor": rng.choice([1.0, 2.5, 0.4]),
    }


ROUTED = SHARED | {
    "attention_bias": False, "eos_token_id": [2, 0], "first_k_dense_replace": 1, "head_dim": 16, "hidden_size": 40,
    "intermediate_size": 48, "moe_intermediate_size": 20, "n_group": 2, "n_routed_experts": 6, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "pad_token_id": 0, "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 1000000.0,
    "routed_scaling_factor": 1.5, "topk_group": 1, "torch_dtype": "float32",
}


def glm4_moe(rng):
    changes = common(rng) | heads(rng) | {"head_dim": rng.choice([8, 16, 32])} | positions(rng, rng.choice([0.25, 0.5, 1.0]))
    return changes | routed(rng) | {
        "attention_bias": rng.random() < 0.5, "use_qk_norm": rng.random() < 0.5, "first_k_dense_replace": rng.choice([0, 1, 2]),
    }


GLM4_MOE = Family("glm4_moe", ROUTED | {
    "architectures": ["Glm4MoeForCausalLM"], "attention_bias": True, "model_type": "glm4_moe",
    "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5, "use_qk_norm": True,
}, glm4_moe)


def dots1(rng):
    changes = common(rng) | heads(rng) | positions(rng) | routed(rng)
    return changes | {"attention_bias": rng.random() < 0.5, "first_k_dense_replace": rng.choice([0, 1, 2])}


DOTS1 = Family("dots1", ROUTED | {
    "architectures": ["Dots1ForCausalLM"], "max_window_layers": 2, "model_type": "dots1", "sliding_window": None,
}, dots1)


def local_layers(rng):
    """Layers with a window and RoPE, and layers with neither."""
    layers = rng.choice([2, 3, 4])
    kinds = ["sliding_attention", "full_attention"]
    return {
        "num_hidden_layers": layers, "layer_types": rng.choice([ABSENT, [rng.choice(kinds) for _ in range(layers)]]),
        "sliding_window": rng.choice([1, 5, 33, 64]),
    }


def afmoe(rng):
    return common(rng) | heads(rng) | positions(rng) | experts(rng, "num_experts") | local_layers(rng) | {
        "global_attn_every_n_layers": rng.choice([1, 2, 4, ABSENT]), "moe_intermediate_size": rng.choice([10, 20]),
        "mup_enabled": rng.choice([True, False, ABSENT]), "num_dense_layers": rng.choice([0, 1, 2]),
        "num_shared_experts": rng.choice([1, 2, 3]), "route_scale": rng.choice([1.0, 2.826, 0.4]),
    }


AFMOE = Family("afmoe", SHARED | {
    "architectures": ["AfmoeForCausalLM"], "attention_bias": False, "eos_token_id": 2, "global_attn_every_n_layers": 2, "head_dim": 16,
    "hidden_size": 40, "intermediate_size": 48, "layer_types": ["sliding_attention", "full_attention"], "model_type": "afmoe",
    "moe_intermediate_size": 20, "mup_enabled": True, "n_group": 1, "num_attention_heads": 4, "num_dense_layers": 1,
    "num_expert_groups": 1, "num_experts": 5, "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_key_value_heads": 2,
    "num_limited_groups": 1, "num_shared_experts": 1, "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 10000,
    "route_norm": True, "route_scale": 2.826, "score_func": "sigmoid", "sliding_window": 24, "topk_group": 1, "torch_dtype": "float32",
}, afmoe)


def exaone_moe(rng):
    changes = common(rng) | heads(rng) | positions(rng) | routed(rng) | local_layers(rng)
    changes |= {"num_experts": changes.pop("n_routed_experts"), "num_shared_experts": changes.pop("n_shared_experts")}
    if changes["layer_types"] == ABSENT:
        changes["sliding_window_pattern"] = rng.choice([1, 2, 4, ABSENT])
    dense = rng.choice([0, 1, 2])
    kinds = [rng.choice(["dense", "sparse"]) for _ in range(changes["num_hidden_layers"])]
    return changes | rng.choice([
        {"first_k_dense_replace": dense}, {"first_k_dense_replace": dense, "mlp_layer_types": kinds}, {"mlp_layer_types": kinds},
    ])


EXAONE_MOE = Family("exaone_moe", {key: value for key, value in ROUTED.items() if not key.startswith("n_") and key != "attention_bias"} | {
    "architectures": ["ExaoneMoeForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "layer_types": ["sliding_attention", "full_attention"],
    "model_type": "exaone_moe", "n_group": 2, "num_experts": 6, "num_shared_experts": 1, "scoring_func": "sigmoid",
    "sliding_window": 24, "sliding_window_pattern": "LG", "topk_method": "noaux_tc",
}, exaone_moe)


def hunyuan(rng):
    rope = rng.choice([None, {"type": "dynamic", "factor": 1.0, "alpha": rng.choice([2.0, 50.0, 1000.0])}])
    theta = rng.choice([500.0, 10000, 31415.0])
    changes = common(rng) | heads(rng) | experts(rng, "num_experts", "moe_topk") | {
        "attention_bias": rng.random() < 0.4, "attention_head_dim": ABSENT, "intermediate_size": rng.choice([10, 20, 30]),
        "moe_intermediate_size": ABSENT, "num_hidden_layers": rng.choice([1, 2, 3]), "num_shared_expert": rng.choice([1, ABSENT]),
    }
    if rng.random() < 0.5:
        return changes | {"rope_scaling": rope, "rope_theta": theta}
    return changes | {
        "rope_parameters": (rope or {"rope_type": "default"}) | {"rope_theta": theta}, "rope_scaling": ABSENT, "rope_theta": ABSENT,
    }


HUNYUAN = Family("hunyuan_v1_moe", SHARED | {
    "architectures": ["HunYuanMoEV1ForCausalLM"], "attention_bias": False, "attention_head_dim": 16, "cla_share_factor": 2,
    "eod_token_id": 3, "eos_token_id": 2, "head_dim": 16, "hidden_size": 40, "intermediate_size": 20, "mlp_bias": False,
    "model_type": "hunyuan_v1_moe", "moe_intermediate_size": [20, 20], "moe_layer_num_skipped": 0, "moe_topk": [2, 2],
    "norm_type": "rms", "num_attention_heads": 4, "num_experts": 5, "num_hidden_layers": 2, "num_key_value_heads": 2,
    "num_shared_expert": [1, 1], "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"},
    "rope_theta": 10000.0, "sep_token_id": 4, "torch_dtype": "float32", "use_cla": False, "use_mixed_mlp_moe": True, "use_qk_norm": True,
}, hunyuan)


def laguna_positions(rng):
    """Settings of both kinds of layers, which rotate parts of their heads."""
    def of(kind):
        return kind | {"rope_theta": rng.choice([500.0, 10000.0, 5e5]), "partial_rotary_factor": rng.choice([0.25, 0.5, 1.0])}

    full = {key: value for key, value in rng.choice([{"rope_type": "default"}, yarn(rng)]).items() if key != "truncate"}
    return {"rope_parameters": {"full_attention": of(full), "sliding_attention": of({"rope_type": "default"})}}


def laguna(rng):
    layers = rng.choice([2, 3, 4])
    kinds, parts = ["sliding_attention", "full_attention"], ["dense", "sparse"]
    changes = common(rng) | heads(rng) | {"head_dim": rng.choice([8, 16, 32])} | experts(rng, "num_experts") | laguna_positions(rng)
    groups = changes["num_key_value_heads"]
    return changes | {
        "gating": rng.choice([True, "per-head", "per-element"]), "num_hidden_layers": layers, "gating_types": ABSENT,
        "layer_types": rng.choice([ABSENT, [rng.choice(kinds) for _ in range(layers)]]),
        "mlp_layer_types": rng.choice([ABSENT, [rng.choice(parts) for _ in range(layers)]]), "mlp_only_layers": ABSENT,
        "moe_intermediate_size": rng.choice([10, 20]), "moe_routed_scaling_factor": rng.choice([1.0, 2.5, 0.4]),
        "num_attention_heads_per_layer": rng.choice([ABSENT, [groups * rng.choice([1, 2, 3, 5]) for _ in range(layers)]]),
        "shared_expert_intermediate_size": rng.choice([8, 20, 30]), "sliding_window": rng.choice([1, 5, 33, 64]),
    }


LAGUNA = Family("laguna", {key: value for key, value in SHARED.items() if key not in ("rope_scaling", "rope_theta")} | {
    "architectures": ["LagunaForCausalLM"], "attention_bias": False, "decoder_sparse_step": 1, "eos_token_id": [2, 6],
    "gating": "per-head", "gating_types": ["per_head"] * 2, "head_dim": 16, "hidden_size": 40, "intermediate_size": 48,
    "layer_types": ["full_attention", "sliding_attention"], "mlp_layer_types": ["dense", "sparse"], "mlp_only_layers": [0],
    "model_type": "laguna", "moe_apply_router_weight_on_input": False, "moe_intermediate_size": 20, "moe_routed_scaling_factor": 2.5,
    "moe_router_logit_softcapping": 0.0, "norm_topk_prob": True, "num_attention_heads": 4, "num_attention_heads_per_layer": [4, 6],
    "num_experts": 5, "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "full_attention": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 4.0, "original_max_position_embeddings": 32, "partial_rotary_factor": 0.5,
            "rope_theta": 500000.0, "rope_type": "yarn",
        },
        "sliding_attention": {"partial_rotary_factor": 1.0, "rope_theta": 10000.0, "rope_type": "default"},
    },
    "shared_expert_intermediate_size": 24, "sliding_window": 24, "torch_dtype": "float32",
}, laguna)


def minimax_m2(rng):
    changes = common(rng) | heads(rng) | {"head_dim": rng.choice([8, 16, 32])} | positions(rng, rng.choice([0.25, 0.5, 1.0]))
    return changes | experts(rng, "num_local_experts")


MINIMAX_M2 = Family("minimax_m2", SHARED | {
    "architectures": ["MiniMaxM2ForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "head_dim": 16, "hidden_size": 40,
    "intermediate_size": 20, "model_type": "minimax_m2", "num_attention_heads": 4, "num_experts_per_tok": 2,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "num_local_experts": 5, "output_router_logits": False,
    "rope_theta": 5000000, "rotary_dim": 8, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0,
    "scoring_func": "sigmoid", "torch_dtype": "float32",
}, minimax_m2)


def granite_shared(rng):
    # Nestling divides the residual stream by the multiplier, and refuses by name where that cannot be.
    return granite(rng) | {"shared_intermediate_size": rng.choice([0, 12, 28]), "residual_multiplier": rng.choice([0.22, 0.7, 1])}


GRANITE_SHARED = Family("granitemoeshared", GRANITE.config | {
    "architectures": ["GraniteMoeSharedForCausalLM"], "model_type": "granitemoeshared", "shared_intermediate_size": 28,
}, granite_shared)


def ernie(rng):
    changes = common(rng) | heads(rng) | positions(rng) | experts(rng, "moe_num_experts", "moe_k")
    return changes | {
        "num_hidden_layers": rng.choice([2, 3, 4]), "moe_layer_start_index": rng.choice([0, 1, 2]),
        "moe_layer_end_index": rng.choice([-1, 1, 2, ABSENT]), "moe_layer_interval": rng.choice([1, 1, 2]),
        "moe_num_shared_experts": rng.choice([0, 1, 2]), "moe_intermediate_size": rng.choice([10, 20]),
    }


ERNIE = Family("ernie4_5_moe", SHARED | {
    "architectures": ["Ernie4_5_MoeForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "head_dim": 16, "hidden_size": 40,
    "intermediate_size": 48, "model_type": "ernie4_5_moe", "moe_intermediate_size": 20, "moe_k": 2,
    "moe_layer_end_index": -1, "moe_layer_interval": 1, "moe_layer_start_index": 1, "moe_norm_min": 1e-12,
    "moe_num_experts": 5, "moe_num_shared_experts": 1, "num_attention_heads": 4, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "output_router_logits": False, "pad_token_id": 0, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "router_aux_loss_coef": 0.001, "torch_dtype": "float32", "use_bias": False,
}, ernie)


def gemma4(rng):
    layers = rng.choice([2, 3, 4])
    shared_keys = rng.random() < 0.6
    changes = common(rng) | heads(rng) | experts(rng, "num_experts", "top_k_experts")
    return changes | {
        "attention_k_eq_v": shared_keys, "num_hidden_layers": layers,
        "layer_types": [rng.choice(["sliding_attention", "full_attention"]) for _ in range(layers - 1)] + ["full_attention"],
        "global_head_dim": rng.choice([8, 24, 32]),
        "num_global_key_value_heads": rng.choice([changes["num_key_value_heads"], 1]),
        "sliding_window": rng.choice([13, 50]), "final_logit_softcapping": rng.choice([None, 5.0, 30]),
        "rope_parameters": {
            "full_attention": rng.choice([
                {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
                {"partial_rotary_factor": 0.5, "rope_theta": 5000.0, "rope_type": "proportional"},
                {"rope_theta": 77777.0, "rope_type": "default"},
            ]),
            "sliding_attention": {"rope_theta": rng.choice([10000.0, 300.0]), "rope_type": "default"},
        },
    }


GEMMA4_TEXT_CONFIG = {key: value for key, value in SHARED.items() if key != "hidden_act"} | {
    "attention_bias": False, "attention_k_eq_v": True, "bos_token_id": 2, "dtype": "float32",
    "enable_moe_block": True, "eos_token_id": 1, "final_logit_softcapping": 10.0, "global_head_dim": 24,
    "head_dim": 16, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 40, "hidden_size_per_layer_input": 0,
    "intermediate_size": 48, "layer_types": ["sliding_attention", "full_attention"], "model_type": "gemma4_text",
    "moe_intermediate_size": 20, "num_attention_heads": 4, "num_experts": 5, "num_global_key_value_heads": 1,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "num_kv_shared_layers": 0, "pad_token_id": 0,
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    }, "sliding_window": 40, "tie_word_embeddings": True, "top_k_experts": 2,
    "use_bidirectional_attention": "vision", "use_double_wide_mlp": False, "vocab_size_per_layer_input": 262144,
}
GEMMA4 = Family("gemma4", {
    "architectures": ["Gemma4ForConditionalGeneration"], "audio_config": None, "audio_token_id": 1085,
    "boa_token_id": 1086, "boi_token_id": 1087, "dtype": "float32", "eoa_token_id": 1088, "eoa_token_index": 1088,
    "eoi_token_id": 1089, "eos_token_id": [1, 6], "image_token_id": 1090, "initializer_range": 0.02,
    "model_type": "gemma4", "text_config": GEMMA4_TEXT_CONFIG, "tie_word_embeddings": True, "video_token_id": 1091,
    "vision_config": {
        "attention_bias": False, "attention_dropout": 0.0, "head_dim": 8, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 16, "initializer_range": 0.02, "intermediate_size": 24, "max_position_embeddings": 128,
        "model_type": "gemma4_vision", "num_attention_heads": 2, "num_hidden_layers": 1, "num_key_value_heads": 2,
        "patch_size": 4, "pooling_kernel_size": 3, "position_embedding_size": 16, "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 100.0, "rope_type": "axial"}, "standardize": True,
        "use_clipped_linears": False,
    }, "vision_soft_tokens_per_image": 4,
}, gemma4, ("text_config",))
GEMMA4_TEXT = Family("gemma4_text", GEMMA4_TEXT_CONFIG | {"architectures": ["Gemma4ForCausalLM"]}, gemma4)


def gpt_oss(rng):
    layers = rng.choice([2, 3])
    kinds = ["sliding_attention", "full_attention"]
    return common(rng) | heads(rng) | positions(rng) | experts(rng, "num_local_experts") | {
        "attention_bias": rng.random() < 0.7, "num_hidden_layers": layers,
        "layer_types": rng.choice([ABSENT, [rng.choice(kinds) for _ in range(layers)]]),
        "sliding_window": rng.choice([5, 33, 128, ABSENT]), "swiglu_limit": rng.choice([1.5, 7.0, ABSENT]),
        "swiglu_alpha": rng.choice([1.0, 1.702, ABSENT]),
    }


GPT_OSS = Family("gpt_oss", SHARED | {
    "architectures": ["GptOssForCausalLM"], "attention_bias": True, "eos_token_id": 2, "experts_per_token": 2,
    "head_dim": 16, "hidden_size": 40, "initial_context_length": 32, "intermediate_size": 20,
    "layer_types": ["sliding_attention", "full_attention"], "model_type": "gpt_oss", "num_attention_heads": 4,
    "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_key_value_heads": 2, "num_local_experts": 5,
    "output_router_logits": False, "pad_token_id": 0, "rms_norm_eps": 1e-5, "rope_scaling": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 4.0, "original_max_position_embeddings": 32,
        "rope_type": "yarn", "truncate": False,
    }, "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 20, "swiglu_limit": 7.0,
    "torch_dtype": "float32",
}, gpt_oss, (), ("saved", "mxfp4"))

def windows(rng):
    layers = rng.choice([2, 3, 4])
    kinds = ["sliding_attention", "full_attention"]
    return {
        "num_hidden_layers": layers, "use_sliding_window": rng.random() < 0.6, "sliding_window": rng.choice([5, 33, 64]),
        "max_window_layers": rng.randint(0, layers), "layer_types": rng.choice([ABSENT, [rng.choice(kinds) for _ in range(layers)]]),
    }


def llama3_positions(rng):
    rope = {
        "rope_type": "llama3", "factor": rng.choice([2.0, 8, 32.0]), "low_freq_factor": rng.choice([1.0, 2]),
        "high_freq_factor": rng.choice([4.0, 8]), "original_max_position_embeddings": rng.choice([16, 32, 64]),
    }
    return {"rope_theta": rng.choice([500.0, 10000, 500000.0]), "rope_scaling": rope, "rope_parameters": ABSENT}


def llama(rng):
    width = heads(rng, own_width=False)
    if rng.random() < 0.4:
        width["head_dim"] = rng.choice([8, 10, 16, 22])
    rope = llama3_positions(rng) if rng.random() < 0.4 else positions(rng)
    return common(rng) | width | rope | {"attention_bias": rng.random() < 0.4, "num_hidden_layers": rng.choice([1, 2, 3])}


DENSE = SHARED | {
    "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 40, "intermediate_size": 48, "num_attention_heads": 4,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "torch_dtype": "float32",
}
LLAMA = Family("llama", DENSE | {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "mlp_bias": False, "model_type": "llama",
    "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 10000.0,
}, llama)


def mistral(rng):
    changes = common(rng) | heads(rng) | positions(rng)
    return changes | {"sliding_window": rng.choice([None, 1, 17, 64, ABSENT]), "num_hidden_layers": rng.choice([1, 2, 3])}


MISTRAL = Family("mistral", DENSE | {
    "architectures": ["MistralForCausalLM"], "head_dim": 16, "model_type": "mistral", "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "sliding_window": 20,
}, mistral)


def qwen2(rng):
    return common(rng) | heads(rng, own_width=False) | positions(rng) | windows(rng)


QWEN2 = Family("qwen2", DENSE | {
    "architectures": ["Qwen2ForCausalLM"], "max_window_layers": 1, "model_type": "qwen2", "rope_theta": 1000000.0,
    "sliding_window": 24, "use_sliding_window": True,
}, qwen2)


def qwen3(rng):
    return common(rng) | heads(rng) | positions(rng) | windows(rng) | {"attention_bias": rng.random() < 0.4}


QWEN3 = Family("qwen3", DENSE | {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 16, "max_window_layers": 2,
    "model_type": "qwen3", "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "use_sliding_window": False,
}, qwen3)


def granite_dense(rng):
    changes = granite(rng)
    del changes["num_local_experts"], changes["num_experts_per_tok"]
    # As of the shared expert: Nestling divides by the multiplier.
    return changes | {"residual_multiplier": rng.choice([0.22, 0.7, 1])}


GRANITE_DENSE = Family("granite", DENSE | {
    "architectures": ["GraniteForCausalLM"], "attention_bias": False, "attention_multiplier": 0.25, "bos_token_id": 0,
    "embedding_multiplier": 1.75, "eos_token_id": 0, "logits_scaling": 0.5, "mlp_bias": False, "model_type": "granite",
    "pad_token_id": 0, "residual_multiplier": 0.6, "rope_scaling": None, "rope_theta": 10000.0,
}, granite_dense)


def gemma3_positions(rng):
    """Bases and scaling of both kinds of layers, in the layout of transformers 4 or 5."""
    linear = {"rope_type": "linear", "factor": rng.choice([2, 8.0])}
    theta, local = rng.choice([5000.0, 1e6]), rng.choice([300.0, 10000])
    if rng.random() < 0.5:
        rope = rng.choice([None, linear, yarn(rng)])
        return {"rope_theta": theta, "rope_local_base_freq": local, "rope_scaling": rope, "rope_parameters": ABSENT}
    full = rng.choice([{"rope_type": "default"}, linear, yarn(rng)]) | {"rope_theta": theta}
    return {"rope_theta": ABSENT, "rope_local_base_freq": ABSENT, "rope_scaling": ABSENT, "rope_parameters": {
        "full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": local},
    }}


def gemma3(rng):
    layers = rng.choice([2, 3, 4])
    kinds = ["sliding_attention", "full_attention"]
    # transformers wants heads that divide the hidden size, although they have a width of their own.
    return common(rng) | heads(rng, own_width=False) | gemma3_positions(rng) | {
        "head_dim": rng.choice([8, 10, 16, 22]), "num_hidden_layers": layers, "sliding_window_pattern": rng.choice([2, 3, 6, ABSENT]),
        "layer_types": rng.choice([ABSENT, [rng.choice(kinds) for _ in range(layers)]]), "sliding_window": rng.choice([5, 13, 50]),
        "query_pre_attn_scalar": rng.choice([8, 20, 144]), "final_logit_softcapping": rng.choice([None, 5.0, 30.0]),
    }


GEMMA3 = Family("gemma3_text", {key: value for key, value in DENSE.items() if key != "hidden_act"} | {
    "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attn_logit_softcapping": None, "bos_token_id": 2,
    "cache_implementation": "hybrid", "eos_token_id": [1, 6], "final_logit_softcapping": None, "head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh", "model_type": "gemma3_text", "pad_token_id": 0,
    "query_pre_attn_scalar": 20, "rope_local_base_freq": 10000.0, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "rope_theta": 1000000.0, "sliding_window": 24, "sliding_window_pattern": 2, "tie_word_embeddings": True,
}, gemma3)



def lfm2_layers(rng):
    layers = rng.choice([2, 3, 4])
    changes = heads(rng, own_width=False) | positions(rng) | {
        "conv_L_cache": rng.choice([2, 3, 5]), "conv_bias": rng.random() < 0.4, "num_hidden_layers": layers,
        "layer_types": [rng.choice(["conv", "full_attention"]) for _ in range(layers)],
        "norm_eps": rng.choice([1e-6, 1e-5, 1e-3]), "dtype": rng.choice(["float32", "bfloat16"]),
    }
    return changes | rng.choice([{"tie_embedding": rng.random() < 0.5, "tie_word_embeddings": ABSENT}, {}])


def lfm2(rng):
    changes = lfm2_layers(rng) | {
        "block_auto_adjust_ff_dim": rng.choice([True, True, False, ABSENT]), "block_ffn_dim_multiplier": rng.choice([1.0, 1, 1.3, 0.4]),
        "block_multiple_of": rng.choice([1, 8, 20]), rng.choice(["intermediate_size", "block_ff_dim"]): rng.choice([30, 48, 64]),
    }
    if rng.random() < 0.4:
        changes["layer_types"] = ABSENT
        changes["full_attn_idxs"] = rng.choice([[], [0], [1, 0], ABSENT])
    return {"intermediate_size": ABSENT} | changes


def lfm2_moe(rng):
    return lfm2_layers(rng) | experts(rng, "num_experts") | {
        "moe_intermediate_size": rng.choice([10, 16]), "norm_topk_prob": rng.random() < 0.7, "num_dense_layers": rng.choice([0, 1, 2]),
        "routed_scaling_factor": rng.choice([1.0, 0.7, 2.5]), "use_expert_bias": rng.random() < 0.6,
    }


def granite_hybrid(rng):
    layers, heads_of_mamba, expand = rng.choice([2, 3]), rng.choice([2, 4, 6]), rng.choice([1, 2, 3])
    shape = heads(rng, own_width=False)
    hidden = 12 * shape["num_attention_heads"] if shape["num_attention_heads"] % 2 else 6 * shape["num_attention_heads"]
    changes = common(rng) | shape | positions(rng) | experts(rng, "num_local_experts") | {
        "attention_bias": rng.random() < 0.3, "attention_multiplier": rng.choice([0.125, 0.3, 1]), "embedding_multiplier": rng.choice([1, 3, 12]),
        "hidden_size": hidden, "intermediate_size": rng.choice([12, 20]), "logits_scaling": rng.choice([1, 3.0, 6]),
        "layer_types": rng.choice([ABSENT, [rng.choice(["mamba", "attention", "linear_attention", "full_attention"]) for _ in range(layers)]]),
        "mamba_chunk_size": rng.choice([4, 16, 256]), "mamba_conv_bias": rng.random() < 0.6, "mamba_d_conv": rng.choice([2, 3, 4, 7]),
        "mamba_d_head": "auto", "mamba_d_state": rng.choice([4, 12, 16]), "mamba_expand": expand,
        "mamba_n_groups": rng.choice([1, 2]), "mamba_n_heads": heads_of_mamba, "mamba_proj_bias": rng.random() < 0.3,
        "num_hidden_layers": layers, "position_embedding_type": rng.choice(["nope", "rope", None, ABSENT]),
        "residual_multiplier": rng.choice([0.22, 0.7, 1]), "shared_intermediate_size": rng.choice([12, 28]),
    }
    if rng.random() < 0.3:
        changes["num_local_experts"] = 0
    return changes


GRANITE_HYBRID = Family("granitemoehybrid", GRANITE.config | {
    "architectures": ["GraniteMoeHybridForCausalLM"], "layer_types": ["mamba", "attention"], "mamba_chunk_size": 16, "mamba_conv_bias": True,
    "mamba_d_conv": 4, "mamba_d_head": "auto", "mamba_d_state": 8, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 4,
    "mamba_proj_bias": False, "model_type": "granitemoehybrid", "num_hidden_layers": 2, "position_embedding_type": "nope",
    "shared_intermediate_size": 28,
}, granite_hybrid)


def nemotron_h(rng):
    blocks = [rng.choice(["linear_attention", "mamba", "full_attention", "attention"]) for _ in range(rng.choice([2, 3]))]
    for at in range(len(blocks), 0, -1):
        if rng.random() < 0.7:
            blocks.insert(at, rng.choice(["moe", "moe", "mlp"]))
    letters = {"linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*", "moe": "E", "mlp": "-"}
    changes = common(rng) | heads(rng) | {"head_dim": rng.choice([8, 12, 16])} | experts(rng, "n_routed_experts")
    changes |= {
        "attention_bias": rng.random() < 0.3, "chunk_size": rng.choice([4, 16, 256]), "conv_kernel": rng.choice([2, 3, 4, 7]),
        "expand": rng.choice([1, 2]), "intermediate_size": rng.choice([20, 36]), "mamba_head_dim": rng.choice([4, 8, 12]),
        "layer_norm_epsilon": rng.choice([1e-6, 1e-5, 1e-3]), "mamba_num_heads": rng.choice([2, 4, 6]),
        "moe_intermediate_size": rng.choice([10, 16]), "moe_shared_expert_intermediate_size": rng.choice([12, 28]),
        "n_groups": rng.choice([1, 2]), "n_shared_experts": rng.choice([0, 1, 2]), "norm_topk_prob": rng.random() < 0.7,
        "routed_scaling_factor": rng.choice([1.0, 0.7, 2.5]), "ssm_state_size": rng.choice([4, 12, 16]),
        "time_step_min": rng.choice([0.0001, 0.001]), "use_bias": rng.random() < 0.3, "use_conv_bias": rng.random() < 0.6,
        "layers_block_type": blocks, "num_hidden_layers": rng.choice([ABSENT, len(blocks)]),
    }
    if rng.random() < 0.4:
        changes |= {"layers_block_type": ABSENT, "hybrid_override_pattern": "".join(letters[kind] for kind in blocks)}
    del changes["rms_norm_eps"]
    return changes


NEMOTRON_H = Family("nemotron_h", {
    key: value for key, value in DENSE.items() if key not in ("hidden_act", "rms_norm_eps")
} | {
    "architectures": ["NemotronHForCausalLM"], "attention_bias": False, "chunk_size": 16, "conv_kernel": 4, "expand": 2, "head_dim": 8,
    "layer_norm_epsilon": 1e-5, "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "mamba_head_dim": 8,
    "mamba_hidden_act": "silu", "mamba_num_heads": 4, "mlp_bias": False, "mlp_hidden_act": "relu2", "model_type": "nemotron_h",
    "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 28, "n_group": 1, "n_groups": 1, "n_routed_experts": 5,
    "n_shared_experts": 1, "norm_topk_prob": True, "num_experts_per_tok": 2, "num_hidden_layers": 4, "routed_scaling_factor": 1.0,
    "ssm_state_size": 8, "time_step_max": 0.1, "time_step_min": 0.001, "topk_group": 1, "use_bias": False, "use_conv_bias": True,
}, nemotron_h)


OF_LFM2 = {key: value for key, value in DENSE.items() if key not in ("hidden_act", "tie_word_embeddings", "rms_norm_eps")} | {
    "conv_L_cache": 3, "conv_bias": False, "eos_token_id": 7, "layer_types": ["conv", "full_attention"], "norm_eps": 1e-5,
    "pad_token_id": 0, "rope_theta": 1000000.0, "tie_embedding": True,
}
LFM2 = Family("lfm2", OF_LFM2 | {
    "architectures": ["Lfm2ForCausalLM"], "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 8, "model_type": "lfm2",
}, lfm2)
LFM2_MOE = Family("lfm2_moe", OF_LFM2 | {
    "architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe", "moe_intermediate_size": 16, "norm_topk_prob": True,
    "num_dense_layers": 1, "num_experts": 5, "num_experts_per_tok": 2, "routed_scaling_factor": 1.0, "use_expert_bias": True,
}, lfm2_moe)

def solar(rng):
    return common(rng) | heads(rng) | positions(rng) | routed(rng) | {"attention_bias": rng.random() < 0.5}


SOLAR = Family("solar_open", {key: value for key, value in ROUTED.items() if key not in ("first_k_dense_replace", "intermediate_size")} | {
    "architectures": ["SolarOpenForCausalLM"], "model_type": "solar_open", "partial_rotary_factor": 1.0,
}, solar)


def with_images(rng):
    """Text of models with images: three kinds of positions share a head's pairs."""
    changes = common(rng) | heads(rng) | {"head_dim": rng.choice([8, 12, 16, 32])} | experts(rng, "num_experts") | sparse_layers(rng)
    half = changes["head_dim"] // 2
    height, width = (rng.choice([1, half // 4 or 1]) for _ in range(2))
    rope = {"rope_type": "default", "mrope_section": [half - height - width, height, width], "mrope_interleaved": True}
    theta = rng.choice([500.0, 10000, 5e6])
    if rng.random() < 0.5:
        changes |= {"rope_parameters": rope | {"rope_theta": theta}, "rope_theta": ABSENT, "rope_scaling": ABSENT}
    else:
        changes |= {"rope_theta": theta, "rope_scaling": rope, "rope_parameters": ABSENT}
    del changes["tie_word_embeddings"]
    return changes | {
        "attention_bias": rng.random() < 0.4, "moe_intermediate_size": rng.choice([10, 20, 40]), "norm_topk_prob": rng.random() < 0.7,
    }


OF_TEXT = {"dtype": "float32", "max_position_embeddings": POSITIONS, "vocab_size": VOCABULARY}
IMAGE_TOKENS = {"image_token_id": 92, "video_token_id": 93, "vision_start_token_id": 94, "vision_end_token_id": 95}
QWEN3_VL = Family(
    "qwen3_vl_moe", qwen3_vl_moe.CONFIG | {"text_config": qwen3_vl_moe.TEXT | OF_TEXT} | IMAGE_TOKENS, with_images, ("text_config",))
QWEN3_OMNI = Family("qwen3_omni_moe", qwen3_omni_moe.THINKER | IMAGE_TOKENS | {
    "architectures": ["Qwen3OmniMoeThinkerForConditionalGeneration"], "audio_end_token_id": 91, "audio_start_token_id": 90,
    "audio_token_id": 89, "text_config": qwen3_omni_moe.THINKER["text_config"] | OF_TEXT,
}, with_images, ("text_config",))


def ling(rng):
    changes = glm4_moe(rng) | {"attention_bias": False, "use_qk_norm": True}
    # Ling's code divides by the sum whatever it is; GLM's does not for one expert.
    return changes | {"norm_topk_prob": changes["num_experts_per_tok"] > 1}


# transformers has no class of these two, but their arithmetic under other names: see published.py.
KIMI = Family("kimi_k2", DEEPSEEK_V3.config, DEEPSEEK_V3.draw)
LING = Family("bailing_moe_v2", GLM4_MOE.config | {"attention_bias": False, "num_nextn_predict_layers": 0}, ling, is_drawn_only=True)

FAMILIES = {
    family.name: family
    for family in [
        QWEN3_MOE, QWEN2_MOE, QWEN3_NEXT, QWEN3_5_MOE, QWEN3_5_MOE_TEXT, OLMOE, MIXTRAL, GRANITE, DEEPSEEK_V2,
        DEEPSEEK_V3, GLM, GEMMA4, GEMMA4_TEXT, GPT_OSS, GLM4_MOE, DOTS1, MINIMAX_M2, GRANITE_SHARED, ERNIE,
        LLAMA, MISTRAL, QWEN2, QWEN3, GRANITE_DENSE, GRANITE_HYBRID, NEMOTRON_H, GEMMA3, LFM2, LFM2_MOE,
        SOLAR, QWEN3_VL, QWEN3_OMNI, KIMI, LING, AFMOE, EXAONE_MOE, DEEPSEEK_V32, GLM_MOE_DSA, LAGUNA, HUNYUAN,
    ]
}
