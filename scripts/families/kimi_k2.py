"""Kimi-K2: DeepSeek-V3 under a name of its own, without groups, YaRN whose borders are the same."""
import copy
import pathlib
import sys

from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import deepseek_v3  # noqa: E402
import glm4_moe_lite as glm  # noqa: E402
from deepseek_v3 import weight  # noqa: E402, F401

NAME = "kimi-k2"
CONFIG = deepseek_v3.CONFIG | {
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "max_position_embeddings": 320,
    "model_type": "kimi_k2",
    "n_group": 1,
    "n_routed_experts": 7,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "num_nextn_predict_layers": 0,
    "rope_scaling": {
        "beta_fast": 1.0,
        "beta_slow": 1.0,
        "factor": 10.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 32,
        "type": "yarn",
    },
    "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827,
    "topk_group": 1,
}
LENGTHS = [60, 15]
SHARD = "150KB"


def as_deepseek_v3():
    """The configuration by the class that the publisher's differs from in name and defaults alone."""
    return DeepseekV3Config(**copy.deepcopy(CONFIG) | {"model_type": "deepseek_v3"})


def build(_config):
    model = DeepseekV3ForCausalLM(as_deepseek_v3())
    glm.fill_biases(model, 5)
    return model


def publish(directory):
    glm.exact_biases(directory)


def load(directory, **options):
    return DeepseekV3ForCausalLM.from_pretrained(directory, config=as_deepseek_v3(), **options)


def routers(model):
    return glm.group_routers(model, "DeepseekV3TopkRouter", CONFIG)
