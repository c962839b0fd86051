"""gpt-oss as it is published: experts in MXFP4, attention sinks, a sliding window in every other layer,
biases everywhere, the clamped SwiGLU, YaRN."""
import json
import pathlib

import torch
from safetensors.torch import load_file, save_file

NAME = "gpt-oss"
SHARD = "120KB"
# Longer than a page and the window together.
LENGTHS = [100, 23]
CONFIG = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 2,
    "experts_per_token": 3,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initial_context_length": 32,
    "initializer_range": 0.02,
    "intermediate_size": 32,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "max_position_embeddings": 256,
    "model_type": "gpt_oss",
    "num_attention_heads": 6,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "num_local_experts": 5,
    "output_router_logits": False,
    "pad_token_id": 0,
    "quantization_config": {
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
        "quant_method": "mxfp4",
    },
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 20,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "transformers_version": "4.55.0.dev0",
    "use_cache": True,
    "vocab_size": 512,
}

# Magnitudes of E2M1, in the order of its three low bits.
VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def weight(name, parameter, generator):
    values = torch.randn(parameter.shape, generator=generator)
    if name.endswith("sinks"):
        return values
    if name.endswith(("gate_up_proj", "down_proj")):
        # [E, inputs, outputs]; a few neurons reach the limit.
        values = values * 1.5 / parameter.shape[1] ** 0.5
        if name.endswith("gate_up_proj"):
            values[..., :8] *= 6
        return values
    return None


def mxfp4(weights):
    """Blocks [E, outputs, G, 16] and scales [E, outputs, G] of weights [E, inputs, outputs]."""
    blocks = weights.float().transpose(1, 2).unflatten(-1, (-1, 32))
    peak = blocks.abs().amax(-1, keepdim=True).clamp(min=2.0**-100)
    exponent = torch.floor(torch.log2(peak)) - 2
    scaled = blocks / torch.exp2(exponent)
    element = (scaled.abs()[..., None] - VALUES).abs().argmin(-1) + 8 * (scaled < 0)
    packed = element[..., 0::2] + 16 * element[..., 1::2]
    return packed.to(torch.uint8), (exponent[..., 0] + 127).to(torch.uint8)


def publish(directory: pathlib.Path) -> None:
    """Replaces the experts' matrices by blocks and scales, with the other tensors where they were."""
    index = directory / "model.safetensors.index.json"
    listing = json.loads(index.read_text(encoding="utf-8"))
    for file in sorted(set(listing["weight_map"].values())):
        tensors = load_file(directory / file)
        for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
            blocks, scales = mxfp4(tensors.pop(name))
            del listing["weight_map"][name]
            for suffix, tensor in [("_blocks", blocks), ("_scales", scales)]:
                tensors[name + suffix] = tensor.contiguous()
                listing["weight_map"][name + suffix] = file
        save_file(tensors, directory / file, metadata={"format": "pt"})
    sizes = [file.stat().st_size for file in directory.glob("*.safetensors")]
    listing["metadata"] = {"total_size": sum(sizes)}
    index.write_text(json.dumps(listing, indent=1) + "\n", encoding="utf-8")
