"""DeepSeek-V2: what Lite leaves out. Queries through a latent, experts of the best groups only,
scaled expert weights."""
NAME = "deepseek-v2"
CONFIG = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "aux_loss_alpha": 0.001,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "first_k_dense_replace": 0,
    "hidden_act": "silu",
    "hidden_size": 48,
    "initializer_range": 0.02,
    "intermediate_size": 64,
    "kv_lora_rank": 36,
    "max_position_embeddings": 256,
    "model_type": "deepseek_v2",
    "moe_intermediate_size": 20,
    "moe_layer_freq": 1,
    "n_group": 3,
    "n_routed_experts": 9,
    "n_shared_experts": 1,
    "norm_topk_prob": False,
    "num_attention_heads": 3,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 2,
    "num_key_value_heads": 3,
    "pretraining_tp": 1,
    "q_lora_rank": 44,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "softmax",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 2,
    "topk_method": "group_limited_greedy",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "v_head_dim": 16,
    "vocab_size": 512,
}


def routers(model):
    """Experts within the groups that were chosen, and the groups."""
    modules = [m for m in model.modules() if type(m).__name__ == "DeepseekV2TopkRouter"]
    groups, chosen = CONFIG["n_group"], CONFIG["topk_group"]

    def of_groups(_inputs, output):
        return output[0].softmax(-1).unflatten(-1, (groups, -1)).amax(-1), chosen

    def of_experts(inputs, output):
        best, count = of_groups(inputs, output)
        scores = output[0].softmax(-1).unflatten(-1, (groups, -1))
        kept = best >= best.topk(count).values[:, -1:]
        return (scores * kept[..., None]).flatten(-2), output[-1].shape[-1]

    return [(module, of) for module in modules for of in (of_groups, of_experts)]
