"""Granite MoE with biases of attention, which residual_multiplier is for too."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from granite_moe import CONFIG as PUBLISHED  # noqa: E402

NAME = "granite-moe-bias"
CONFIG = PUBLISHED | {
    "attention_bias": True,
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_local_experts": 3,
}
LENGTHS = [40, 12]
