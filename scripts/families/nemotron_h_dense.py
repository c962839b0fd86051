"""Nemotron-H: dense parts without gates, a mixer followed by a mixer, biases of Mamba-2's projections, none of the convolution."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import nemotron_h  # noqa: E402

NAME = "nemotron-h-dense"
CONFIG = {key: value for key, value in nemotron_h.CONFIG.items() if key != "layers_block_type"} | {
    "conv_kernel": 3,
    "hybrid_override_pattern": "M-*M-",
    "mamba_head_dim": 12,
    "mamba_num_heads": 6,
    "n_groups": 3,
    "num_hidden_layers": 5,
    "use_bias": True,
    "use_conv_bias": False,
}
weight = nemotron_h.weight


def routers(_model):
    return []
