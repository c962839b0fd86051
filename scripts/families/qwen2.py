"""Qwen2.5: dense layers, biases of queries, keys and values, and windows from the second layer on."""
NAME = "qwen2"
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 72,
    "max_position_embeddings": 256,
    "max_window_layers": 1,
    "model_type": "qwen2",
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 24,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": True,
    "vocab_size": 512,
}


def routers(_model):
    return []
