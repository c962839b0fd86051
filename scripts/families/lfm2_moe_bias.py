"""LFM2-MoE with what no published model has: biases of convolutions and their projections, more taps, no bias for the
choice of experts, weights that are scaled but not normalized, and a head of its own."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import lfm2_moe  # noqa: E402
from lfm2_moe import LENGTHS, build, publish, routers  # noqa: E402, F401

NAME = "lfm2-moe-bias"
CONFIG = lfm2_moe.CONFIG | {
    "conv_L_cache": 5,
    "conv_bias": True,
    "layer_types": ["full_attention", "conv", "conv"],
    "norm_topk_prob": False,
    "num_dense_layers": 0,
    "num_hidden_layers": 3,
    "routed_scaling_factor": 0.8,
    "tie_embedding": False,
    "use_expert_bias": False,
}
SEED = 1110


def weight(name, parameter, generator):
    return lfm2_moe.weight(name, parameter, generator, SEED)
