"""LFM2, dense: gated short convolutions and attention in one layer of three, a width that is two thirds of the given one, in
multiples, and a head that is the embedding."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import lfm2_moe  # noqa: E402
from lfm2_moe import LENGTHS  # noqa: E402, F401

NAME = "lfm2"
CONFIG = {
    "architectures": ["Lfm2ForCausalLM"],
    "block_auto_adjust_ff_dim": True,
    "block_dim": 40,
    "block_ff_dim": 64,
    "block_ffn_dim_multiplier": 1.1,
    "block_multiple_of": 12,
    "block_norm_eps": 1e-05,
    "block_use_swiglu": True,
    "bos_token_id": 1,
    "conv_L_cache": 3,
    "conv_bias": False,
    "conv_dim": 40,
    "conv_dim_out": 40,
    "eos_token_id": 7,
    "full_attn_idxs": [1],
    "hidden_size": 40,
    "initializer_range": 0.02,
    "max_position_embeddings": 512,
    "model_type": "lfm2",
    "norm_eps": 1e-05,
    "num_attention_heads": 5,
    "num_heads": 5,
    "num_hidden_layers": 3,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_pos_enc": True,
    "vocab_size": 512,
}
SEED = 1520


def weight(name, parameter, generator):
    return lfm2_moe.weight(name, parameter, generator, SEED)


def routers(_):
    return []
