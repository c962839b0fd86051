"""Granite 4 hybrid: Mamba-2 in two layers of three, attention without RoPE, experts beside a shared one, four multipliers."""
import torch

NAME = "granite-moe-hybrid"
CONFIG = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attention_multiplier": 0.125,
    "bos_token_id": 0,
    "embedding_multiplier": 1.75,
    "eos_token_id": 0,
    "hidden_act": "silu",
    "hidden_size": 48,
    "initializer_range": 0.1,
    "intermediate_size": 24,
    "layer_types": ["mamba", "attention", "mamba"],
    "logits_scaling": 6.0,
    "mamba_chunk_size": 16,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 12,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 6,
    "mamba_proj_bias": False,
    "max_position_embeddings": 256,
    "model_type": "granitemoehybrid",
    "normalization_function": "rmsnorm",
    "num_attention_heads": 4,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "num_local_experts": 7,
    "output_router_logits": False,
    "pad_token_id": 0,
    "position_embedding_type": "nope",
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000,
    "router_aux_loss_coef": 0.0,
    "shared_intermediate_size": 40,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 512,
}
SHARD = "150KB"


def weight(name, parameter, generator):
    """Decays of a few to many tokens, and inputs that count in the outputs."""
    values = torch.randn(parameter.shape, generator=generator)
    if name.endswith("A_log"):
        return 1.5 * values - 1
    if name.endswith("mamba.D"):
        return 1 + 0.3 * values
    return None
