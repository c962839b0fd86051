"""GLM-4.5: half of every head is turned, queries, keys and values have biases, DeepSeek-V3's experts,
and the layer that predicts a second token, which is ignored."""
import pathlib
import sys

from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import glm4_moe_lite as glm  # noqa: E402

NAME = "glm4-moe"
CONFIG = {
    "architectures": ["Glm4MoeForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": [2, 0],
    "first_k_dense_replace": 1,
    "head_dim": 20,
    "hidden_act": "silu",
    "hidden_size": 40,
    "initializer_range": 0.02,
    "intermediate_size": 56,
    "max_position_embeddings": 256,
    "model_type": "glm4_moe",
    "moe_intermediate_size": 16,
    "n_group": 3,
    "n_routed_experts": 9,
    "n_shared_experts": 2,
    "norm_topk_prob": True,
    "num_attention_heads": 6,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "num_nextn_predict_layers": 1,
    "pad_token_id": 0,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "routed_scaling_factor": 1.6,
    "tie_word_embeddings": False,
    "topk_group": 2,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_qk_norm": True,
    "vocab_size": 512,
}
LENGTHS = [60, 15]
SHARD = "150KB"
SEED = 5


def weight(name, parameter, generator):
    return glm.quiet_experts(name, parameter, generator)


def build(config):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    glm.fill_biases(model, SEED)
    return model


def publish(directory):
    glm.add_prediction_layer(directory, CONFIG)


def routers(model):
    return glm.group_routers(model, "Glm4MoeTopkRouter", CONFIG)
