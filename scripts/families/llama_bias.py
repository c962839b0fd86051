"""Llama with biases of all projections of attention, and a width of heads of its own."""
NAME = "llama-bias"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 24,
    "hidden_act": "silu",
    "hidden_size": 48,
    "initializer_range": 0.02,
    "intermediate_size": 72,
    "max_position_embeddings": 256,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 512,
}


def routers(_model):
    return []
