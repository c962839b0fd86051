"""Qwen3-Next: three gated DeltaNet layers for one of gated attention, a shared expert behind a sigmoid."""
import torch

NAME = "qwen3-next"
CONFIG = {
    "architectures": ["Qwen3NextForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "decoder_sparse_step": 1,
    "eos_token_id": 2,
    "full_attention_interval": 4,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 40,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 12,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_value_head_dim": 20,
    "max_position_embeddings": 512,
    "mlp_only_layers": [],
    "model_type": "qwen3_next",
    "moe_intermediate_size": 20,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 32,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 512,
}
LENGTHS = [90, 23]


def weight(name, parameter, generator):
    """Norms around zero but for the gated one; heads that forget soon and heads that remember
    (of one that forgets at once, the norm leaves little but the sign of a product near zero);
    experts that do not outweigh all else, since rounding now and then changes which are chosen."""
    values = torch.randn(parameter.shape, generator=generator)
    if name.endswith("A_log"):
        return torch.linspace(0.005, 0.5, len(values)).log()
    if name.endswith("dt_bias"):
        return 0.5 * values
    if name.endswith("conv1d.weight"):
        return 0.5 * values
    if ".experts." in name:
        return values / parameter.shape[-1] ** 0.5
    if "norm" in name and "linear_attn.norm" not in name:
        return 0.2 * values
    return None
