"""DeepSeek-V3: GLM-4.7-Flash's switches under its own names, YaRN with both magnitudes, two shared
experts, and the layer that predicts a second token, which is ignored."""
import copy
import pathlib
import sys

from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import glm4_moe_lite as glm  # noqa: E402

NAME = "deepseek-v3"
CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "aux_loss_alpha": 0.001,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "ep_size": 1,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 40,
    "initializer_range": 0.02,
    "intermediate_size": 56,
    "kv_lora_rank": 36,
    "max_position_embeddings": 256,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 16,
    "moe_layer_freq": 1,
    "n_group": 3,
    "n_routed_experts": 9,
    "n_shared_experts": 2,
    "norm_topk_prob": True,
    "num_attention_heads": 3,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 3,
    "num_key_value_heads": 3,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 28,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 8,
        "mscale": 1.0,
        "mscale_all_dim": 0.8,
        "original_max_position_embeddings": 32,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 2,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "v_head_dim": 12,
    "vocab_size": 512,
}
LENGTHS = [60, 15]
SHARD = "150KB"


def weight(name, parameter, generator):
    return glm.quiet_experts(name, parameter, generator)


def build(config):
    # The class completes what it is given; the file is to stay as it is published.
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**copy.deepcopy(config)))
    glm.fill_biases(model, 5)
    return model


def publish(directory):
    glm.add_prediction_layer(directory, CONFIG)


def routers(model):
    return glm.group_routers(model, "DeepseekV3TopkRouter", CONFIG)
