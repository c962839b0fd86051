"""Trinity: norms around every part, a gate of attention as a matrix of its own, windows with RoPE and full layers without, sigmoid
scores with a selection bias, two shared experts, embeddings that are scaled."""
import torch

NAME = "afmoe"
CONFIG = {
    "architectures": ["AfmoeForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "global_attn_every_n_layers": 4,
    "head_dim": 12,
    "hidden_act": "silu",
    "hidden_size": 40,
    "initializer_range": 0.02,
    "intermediate_size": 56,
    "load_balance_coeff": 0.001,
    "max_position_embeddings": 256,
    "model_type": "afmoe",
    "moe_intermediate_size": 16,
    "mup_enabled": True,
    "n_group": 1,
    "num_attention_heads": 6,
    "num_dense_layers": 1,
    "num_expert_groups": 1,
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "num_limited_groups": 1,
    "num_shared_experts": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000,
    "route_norm": True,
    "route_scale": 2.826,
    "score_func": "sigmoid",
    "sliding_window": 24,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_grouped_mm": True,
    "vocab_size": 512,
}
LENGTHS = [60, 15]
SHARD = "150KB"
# Of many seeds, one whose routers are never near a tie.
SEED = 8


def weight(name, parameter, generator):
    if name.endswith("expert_bias"):
        own = torch.Generator().manual_seed(SEED + int(name.split(".")[2]))
        return 0.2 * torch.randn(parameter.shape, generator=own)
    values = torch.randn(parameter.shape, generator=generator)
    if "embed_tokens" in name:
        # They are scaled by the root of the width.
        return 0.2 * values
    if ".experts." in name:
        # Routed experts that do not outweigh all else.
        return 0.8 * values / parameter.shape[-1] ** 0.5
    return None


def routers(model):
    def of(block):
        return block.router, lambda _, output: (output[0].sigmoid() + block.expert_bias, output[-1].shape[-1])

    return [of(module) for module in model.modules() if type(module).__name__ == "AfmoeSparseMoeBlock"]
