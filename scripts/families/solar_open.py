"""Solar Open: every layer a mixture of DeepSeek-V3's kind, YaRN, and, which no published size has, biases
of queries, keys and values, groups, and weights that are not renormalised."""
import pathlib
import sys

from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import glm4_moe_lite as glm  # noqa: E402

NAME = "solar-open"
CONFIG = {
    "architectures": ["SolarOpenForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 12,
    "hidden_act": "silu",
    "hidden_size": 40,
    "initializer_range": 0.02,
    "max_position_embeddings": 256,
    "model_type": "solar_open",
    "moe_intermediate_size": 16,
    "n_group": 2,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": False,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 2,
    "partial_rotary_factor": 1.0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "type": "yarn",
    },
    "rope_theta": 1000000,
    "routed_scaling_factor": 1.2,
    "tie_word_embeddings": False,
    "topk_group": 1,
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
    return glm.group_routers(model, "SolarOpenTopkRouter", CONFIG)
