"""Granite 3.x without experts: four multipliers, a tied head."""
NAME = "granite"
CONFIG = {
    "architectures": ["GraniteForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.1,
    "attention_multiplier": 0.125,
    "bos_token_id": 0,
    "embedding_multiplier": 1.75,
    "eos_token_id": 0,
    "hidden_act": "silu",
    "hidden_size": 56,
    "initializer_range": 0.02,
    "intermediate_size": 80,
    "logits_scaling": 6.0,
    "max_position_embeddings": 256,
    "mlp_bias": False,
    "model_type": "granite",
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 512,
}


def routers(_model):
    return []
