"""Granite MoE with a shared expert, gate above up in one tensor."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import granite_moe  # noqa: E402

NAME = "granite-moe-shared"
CONFIG = granite_moe.CONFIG | {
    "architectures": ["GraniteMoeSharedForCausalLM"],
    "model_type": "granitemoeshared",
    "num_hidden_layers": 2,
    "num_local_experts": 5,
    "shared_intermediate_size": 40,
}
SHARD = "150KB"
