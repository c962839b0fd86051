"""Nemotron-3 Nano: blocks of one part, Mamba-2 with two groups, attention without RoPE, experts without gates."""
import pathlib
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import glm4_moe_lite as glm  # noqa: E402

NAME = "nemotron-h"
CONFIG = {
    "architectures": ["NemotronHForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "chunk_size": 16,
    "conv_kernel": 4,
    "eos_token_id": 0,
    "expand": 2,
    "head_dim": 16,
    "hidden_size": 48,
    "initializer_range": 0.1,
    "intermediate_size": 56,
    "layer_norm_epsilon": 1e-05,
    "layers_block_type": ["linear_attention", "moe", "linear_attention", "full_attention", "moe"],
    "mamba_head_dim": 16,
    "mamba_hidden_act": "silu",
    "mamba_num_heads": 4,
    "mamba_proj_bias": False,
    "max_position_embeddings": 256,
    "mlp_bias": False,
    "mlp_hidden_act": "relu2",
    "model_type": "nemotron_h",
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "n_group": 1,
    "n_groups": 2,
    "n_routed_experts": 7,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts_per_tok": 3,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "residual_in_fp32": False,
    "routed_scaling_factor": 2.5,
    "sliding_window": None,
    "ssm_state_size": 16,
    "tie_word_embeddings": False,
    "time_step_floor": 0.0001,
    "time_step_max": 0.1,
    "time_step_min": 0.001,
    "topk_group": 1,
    "torch_dtype": "bfloat16",
    "use_bias": False,
    "use_cache": True,
    "use_conv_bias": True,
    "vocab_size": 512,
}
SHARD = "150KB"


def weight(name, parameter, generator):
    """Decays of a few to many tokens, time steps above the lower bound, and inputs that count in the outputs."""
    values = torch.randn(parameter.shape, generator=generator)
    if "embeddings" in name:
        return values
    if name.endswith("A_log"):
        return 1.5 * values - 1
    if name.endswith("mixer.D"):
        return 1 + 0.3 * values
    return glm.quiet_experts(name, parameter, generator)


def build(config):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    glm.fill_biases(model, 5)
    return model


def routers(model):
    return glm.group_routers(model, "NemotronHTopkRouter", CONFIG)
