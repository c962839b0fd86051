"""Hunyuan-A13B: norms of heads after RoPE, a base that a fixed alpha stretches, a shared expert as wide as the others."""
NAME = "hunyuan-v1-moe"
LAYERS = 3
CONFIG = {
    "architectures": ["HunYuanMoEV1ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attention_head_dim": 12,
    "bos_token_id": 1,
    "eod_token_id": 3,
    "eos_token_id": 2,
    "head_dim": 12,
    "hidden_act": "silu",
    "hidden_size": 40,
    "initializer_range": 0.02,
    "intermediate_size": 20,
    "max_position_embeddings": 256,
    "mlp_bias": False,
    "model_type": "hunyuan_v1_moe",
    "moe_intermediate_size": [20] * LAYERS,
    "moe_layer_num_skipped": 0,
    "moe_topk": [3] * LAYERS,
    "norm_type": "rms",
    "num_attention_heads": 6,
    "num_experts": 7,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 2,
    "num_shared_expert": [1] * LAYERS,
    "pad_token_id": 0,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"},
    "rope_theta": 10000.0,
    "sep_token_id": 4,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_cla": False,
    "use_mixed_mlp_moe": True,
    "use_qk_norm": True,
    "vocab_size": 512,
}
LENGTHS = [60, 15]
SHARD = "150KB"


def routers(model):
    def of(module):
        return module, lambda _, output: (output[0], output[-1].shape[-1])

    return [of(module) for module in model.modules() if type(module).__name__ == "HunYuanMoEV1Gate"]
