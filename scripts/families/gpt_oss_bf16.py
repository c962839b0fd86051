"""gpt-oss dequantized, as fine-tuned checkpoints are saved: experts in bfloat16, `[E, inputs, outputs]`,
gate and up interleaved."""
import torch

NAME = "gpt-oss-bf16"
CONFIG = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "dtype": "bfloat16",
    "eos_token_id": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 48,
    "initializer_range": 0.02,
    "intermediate_size": 40,
    "layer_types": ["sliding_attention", "full_attention"],
    "max_position_embeddings": 256,
    "model_type": "gpt_oss",
    "num_attention_heads": 4,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_local_experts": 7,
    "output_router_logits": False,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 150000,
        "rope_type": "yarn",
        "truncate": True,
    },
    "router_aux_loss_coef": 0.9,
    "sliding_window": 9,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": 512,
}


def weight(name, parameter, generator):
    values = torch.randn(parameter.shape, generator=generator)
    if name.endswith("sinks"):
        return values
    if name.endswith(("gate_up_proj", "down_proj")):
        return values * 1.5 / parameter.shape[1] ** 0.5
    return None
