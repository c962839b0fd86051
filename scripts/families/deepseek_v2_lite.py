"""DeepSeek-V2-Lite: attention through a latent, shared experts, a dense layer, YaRN with mscale."""
NAME = "deepseek-v2-lite"
CONFIG = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "aux_loss_alpha": 0.001,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 56,
    "initializer_range": 0.02,
    "intermediate_size": 84,
    "kv_lora_rank": 40,
    "max_position_embeddings": 256,
    "model_type": "deepseek_v2",
    "moe_intermediate_size": 24,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 7,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 4,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "pretraining_tp": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 8,
        "mscale": 0.8,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 32,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "greedy",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "v_head_dim": 20,
    "vocab_size": 512,
}


def routers(model):
    modules = [m for m in model.modules() if type(m).__name__ == "DeepseekV2TopkRouter"]

    def scores(_inputs, output):
        return output[0].softmax(-1), output[-1].shape[-1]

    return [(module, scores) for module in modules]
