"""Qwen3.5-MoE: the text part of a model of text and images, with fused experts; images and the
layer that predicts a second token are there to be passed over."""
import json
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from qwen3_next import weight  # noqa: E402, F401

NAME = "qwen3-5-moe"
TEXT = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_output_gate": True,
    "dtype": "bfloat16",
    "eos_token_id": 2,
    "full_attention_interval": 4,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 40,
    "initializer_range": 0.02,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 16,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 512,
    "mlp_only_layers": [],
    "model_type": "qwen3_5_moe_text",
    "moe_intermediate_size": 20,
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "num_attention_heads": 2,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 28,
    "use_cache": True,
    "vocab_size": 512,
}
CONFIG = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "image_token_id": 508,
    "model_type": "qwen3_5_moe",
    "text_config": TEXT,
    "tie_word_embeddings": False,
    "video_token_id": 509,
    "vision_config": {
        "deepstack_visual_indexes": [],
        "depth": 1,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 16,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": 16,
        "model_type": "qwen3_5_moe",
        "num_heads": 2,
        "num_position_embeddings": 16,
        "out_hidden_size": 40,
        "patch_size": 2,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
    "vision_end_token_id": 511,
    "vision_start_token_id": 510,
}
LENGTHS = [90, 23]


SHARD = "90KB"


def publish(directory):
    """Fuses experts, as they are published, and adds a part of a layer for a second token."""
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    shards = {name: load_file(directory / name) for name in sorted(set(index["weight_map"].values()))}
    tensors = {name: tensor for shard in shards.values() for name, tensor in shard.items()}
    fused = {}
    for layer in range(TEXT["num_hidden_layers"]):
        prefix = f"model.language_model.layers.{layer}.mlp.experts."
        def stack(part):
            return torch.stack([tensors[f"{prefix}{e}.{part}_proj.weight"] for e in range(TEXT["num_experts"])])
        fused[prefix + "gate_up_proj"] = torch.cat([stack("gate"), stack("up")], dim=1)
        fused[prefix + "down_proj"] = stack("down")
    generator = torch.Generator().manual_seed(5)
    size = TEXT["hidden_size"]
    fused["mtp.fc.weight"] = torch.randn((size, 2 * size), generator=generator).to(torch.bfloat16)
    fused["mtp.norm.weight"] = torch.zeros(size, dtype=torch.bfloat16)
    names = list(shards)
    placed = {name: {n: t for n, t in shard.items() if ".experts." not in n} for name, shard in shards.items()}
    for at, (name, tensor) in enumerate(sorted(fused.items())):
        placed[names[at % len(names)]][name] = tensor
    index["weight_map"] = {n: shard for shard, part in placed.items() for n in sorted(part)}
    index["metadata"] = {"total_size": sum(t.nbytes for part in placed.values() for t in part.values())}
    for shard, part in placed.items():
        save_file(part, directory / shard, metadata={"format": "pt"})
    text = json.dumps(index, indent=2, sort_keys=True) + "\n"
    (directory / "model.safetensors.index.json").write_text(text)


def build(config):
    from transformers import Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration
    return Qwen3_5MoeForConditionalGeneration(Qwen3_5MoeConfig(**config))
