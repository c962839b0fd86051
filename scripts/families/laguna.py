"""Laguna: heads by layer, gates of heads by softplus, windows with RoPE of their own beside full layers with YaRN on half of each head,
sigmoid scores with a selection bias, a shared expert of another width."""
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import glm4_moe_lite as glm  # noqa: E402

NAME = "laguna"
FULL, LOCAL = "full_attention", "sliding_attention"
CONFIG = {
    "architectures": ["LagunaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "decoder_sparse_step": 1,
    "eos_token_id": [2, 7],
    "gating": "per-head",
    "gating_types": ["per_head"] * 5,
    "head_dim": 12,
    "hidden_act": "silu",
    "hidden_size": 40,
    "initializer_range": 0.02,
    "intermediate_size": 56,
    "layer_types": [FULL, LOCAL, LOCAL, LOCAL, FULL],
    "max_position_embeddings": 256,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "sparse"],
    "mlp_only_layers": [0],
    "model_type": "laguna",
    "moe_apply_router_weight_on_input": False,
    "moe_intermediate_size": 16,
    "moe_routed_scaling_factor": 2.5,
    "moe_router_logit_softcapping": 0.0,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_attention_heads_per_layer": [4, 6, 6, 6, 4],
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 5,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        FULL: {
            "beta_fast": 64.0, "beta_slow": 1.0, "factor": 4.0, "original_max_position_embeddings": 64, "partial_rotary_factor": 0.5,
            "rope_theta": 500000.0, "rope_type": "yarn",
        },
        LOCAL: {"partial_rotary_factor": 1.0, "rope_theta": 10000.0, "rope_type": "default"},
    },
    "router_aux_loss_coef": 0.0,
    "shared_expert_intermediate_size": 24,
    "sliding_window": 24,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 512,
}
LENGTHS = [60, 15]
SHARD = "150KB"
# Of many seeds, one whose routers are never near a tie.
SEED = 3


def weight(name, parameter, generator):
    if name.endswith("e_score_correction_bias"):
        own = torch.Generator().manual_seed(SEED + int(name.split(".")[2]))
        return 0.2 * torch.randn(parameter.shape, generator=own)
    return glm.quiet_experts(name, parameter, generator)


def publish(directory):
    glm.exact_biases(directory)


def routers(model):
    def of(module):
        return module, lambda _, output: (output[0].sigmoid() + module.e_score_correction_bias, output[-1].shape[-1])

    return [of(module) for module in model.modules() if type(module).__name__ == "LagunaTopKRouter"]
