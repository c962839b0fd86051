"""GLM-5: DeepSeek-V3.2's attention, with an indexer that layers share, experts without groups, and an epsilon of latents that is not
that of the other norms."""
import copy
import pathlib
import sys

from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import deepseek_v32 as v32  # noqa: E402
import glm4_moe_lite as glm  # noqa: E402
from deepseek_v32 import LENGTHS, SHARD, weight  # noqa: E402, F401

NAME = "glm-moe-dsa"
CONFIG = v32.CONFIG | {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "first_k_dense_replace": 1,
    "head_dim": 8,
    "index_head_dim": 12,
    "index_topk_freq": 2,
    "indexer_rope_interleave": True,
    "model_type": "glm_moe_dsa",
    "n_group": 1,
    "n_routed_experts": 7,
    "num_hidden_layers": 4,
    "qk_head_dim": 20,
    "rms_norm_eps": 1e-05,
    "rope_interleave": True,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "topk_group": 1,
    "v_head_dim": 16,
}
del CONFIG["rope_scaling"], CONFIG["rope_theta"]
SEED = 5


def build(config):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**copy.deepcopy(config)))
    glm.fill_biases(model, SEED)
    return model


def publish(directory):
    glm.add_prediction_layer(directory, CONFIG)


def routers(model):
    return glm.group_routers(model, "GlmMoeDsaTopkRouter", CONFIG)
