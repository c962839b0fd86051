"""Mistral: dense layers that all have a sliding window."""
NAME = "mistral"
CONFIG = {
    "architectures": ["MistralForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 48,
    "initializer_range": 0.02,
    "intermediate_size": 80,
    "max_position_embeddings": 256,
    "model_type": "mistral",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 20,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 512,
}


def routers(_model):
    return []
