"""Qwen3: dense layers, and norms of heads."""
NAME = "qwen3"
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 24,
    "hidden_act": "silu",
    "hidden_size": 40,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "max_window_layers": 3,
    "model_type": "qwen3",
    "num_attention_heads": 6,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 512,
}


def routers(_model):
    return []
