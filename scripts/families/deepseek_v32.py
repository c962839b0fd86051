"""DeepSeek-V3.2: DeepSeek-V3 with an indexer that chooses the positions of attention. Contexts are at most as long as what it
chooses, so that it chooses everything: its tensors are passed over."""
import copy
import pathlib
import sys

from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import deepseek_v3 as v3  # noqa: E402
import glm4_moe_lite as glm  # noqa: E402
from deepseek_v3 import LENGTHS, SHARD, weight  # noqa: E402, F401

NAME = "deepseek-v32"
CONFIG = {key: value for key, value in v3.CONFIG.items() if key not in ("aux_loss_alpha", "seq_aux")} | {
    "architectures": ["DeepseekV32ForCausalLM"],
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 256,
    "max_position_embeddings": 512,
    "model_type": "deepseek_v32",
    # GGUF files have both magnitudes as one.
    "rope_scaling": v3.CONFIG["rope_scaling"] | {"mscale_all_dim": 1.0},
}
SEED = 5


def build(config):
    # The class completes what it is given; the file is to stay as it is published.
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**copy.deepcopy(config)))
    glm.fill_biases(model, SEED)
    return model


def publish(directory):
    glm.add_prediction_layer(directory, CONFIG)


def routers(model):
    return glm.group_routers(model, "DeepseekV32TopkRouter", CONFIG)
