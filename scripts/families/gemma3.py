"""Gemma 3's text models: norms around every block and of heads, with weights relative to 1, GeGLU, sliding-window layers
with RoPE of their own, scaled RoPE of the others, a tied head."""
import torch

NAME = "gemma3"
LENGTHS = [90, 23]
CONFIG = {
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "eos_token_id": [1, 106],
    "final_logit_softcapping": None,
    "head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 48,
    "initializer_range": 0.02,
    "intermediate_size": 72,
    "max_position_embeddings": 256,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 7,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 20,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "rope_theta": 1000000.0,
    "sliding_window": 24,
    "sliding_window_pattern": 6,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 512,
}


def weight(name: str, parameter: torch.Tensor, generator: torch.Generator) -> torch.Tensor | None:
    values = torch.randn(parameter.shape, generator=generator)
    if "norm" in name:
        return 0.2 * values
    if "embed_tokens" in name:
        return 0.2 * values
    return None


def routers(_model):
    return []
