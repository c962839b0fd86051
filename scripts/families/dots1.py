"""dots.llm1: DeepSeek-V3's experts without groups, norms of heads, and, which no published size has, biases
of attention and a window in the last layers."""
import pathlib
import sys

from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import glm4_moe_lite as glm  # noqa: E402

NAME = "dots1"
CONFIG = {
    "architectures": ["Dots1ForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 2,
    "first_k_dense_replace": 1,
    "head_dim": 12,
    "hidden_act": "silu",
    "hidden_size": 40,
    "initializer_range": 0.02,
    "intermediate_size": 56,
    "max_position_embeddings": 256,
    "max_window_layers": 2,
    "model_type": "dots1",
    "moe_intermediate_size": 16,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 7,
    "n_shared_experts": 2,
    "norm_topk_prob": True,
    "num_attention_heads": 6,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 3,
    "num_key_value_heads": 3,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "sliding_window": 24,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 512,
}
LENGTHS = [60, 15]
SHARD = "150KB"


def weight(name, parameter, generator):
    return glm.quiet_experts(name, parameter, generator)


def build(config):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    glm.fill_biases(model, 5)
    return model


def publish(directory):
    glm.exact_biases(directory)


def routers(model):
    return glm.group_routers(model, "Dots1TopkRouter", CONFIG)
