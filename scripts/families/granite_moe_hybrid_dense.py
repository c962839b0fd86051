"""Granite 4 hybrid without experts: RoPE, biases of all projections, none of the convolution, two groups of heads."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import granite_moe_hybrid  # noqa: E402

NAME = "granite-moe-hybrid-dense"
CONFIG = granite_moe_hybrid.CONFIG | {
    "attention_bias": True,
    "layer_types": ["attention", "mamba"],
    "mamba_conv_bias": False,
    "mamba_d_conv": 3,
    "mamba_d_head": "auto",
    "mamba_n_groups": 2,
    "mamba_proj_bias": True,
    "num_hidden_layers": 2,
    "num_local_experts": 0,
    "position_embedding_type": "rope",
}
weight = granite_moe_hybrid.weight


def routers(_model):
    return []
