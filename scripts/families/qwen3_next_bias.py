"""Qwen3-Next with biases of attention: those of queries and their gates are one tensor. The names of
these are Qwen3.5's too."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from qwen3_next import CONFIG as PUBLISHED, weight  # noqa: E402, F401

NAME = "qwen3-next-bias"
CONFIG = PUBLISHED | {
    "attention_bias": True,
    "full_attention_interval": 2,
    "hidden_size": 24,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "moe_intermediate_size": 12,
    "num_experts": 3,
    "num_hidden_layers": 2,
    "shared_expert_intermediate_size": 12,
}
LENGTHS = [40, 12]
