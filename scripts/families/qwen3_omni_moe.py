"""Qwen3-Omni: Qwen3-MoE is the text part of what thinks; what sees, hears and talks is passed over."""
import json
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import qwen3_vl_moe as vision  # noqa: E402

NAME = "qwen3-omni-moe"
THINKER = {
    "audio_config": {
        "activation_function": "gelu",
        "conv_chunksize": 500,
        "d_model": 16,
        "downsample_hidden_size": 8,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 16,
        "encoder_layers": 1,
        "max_source_positions": 40,
        "model_type": "qwen3_omni_moe_audio_encoder",
        "n_window": 50,
        "n_window_infer": 800,
        "num_mel_bins": 16,
        "output_dim": 40,
    },
    "audio_end_token_id": 507,
    "audio_start_token_id": 506,
    "audio_token_id": 505,
    "dtype": "bfloat16",
    "image_token_id": 508,
    "initializer_range": 0.02,
    "model_type": "qwen3_omni_moe_thinker",
    "position_id_per_seconds": 13,
    "seconds_per_chunk": 2,
    "text_config": vision.TEXT | {
        "mlp_only_layers": [],
        "model_type": "qwen3_omni_moe_text",
        "moe_intermediate_size": 20,
        "norm_topk_prob": False,
        "num_hidden_layers": 2,
        "rope_scaling": {"interleaved": True, "mrope_interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default", "type": "default"},
        "rope_theta": 1000000,
        "shared_expert_intermediate_size": 0,
        "sliding_window": None,
        "use_qk_norm": True,
        "use_sliding_window": False,
    },
    "user_token_id": 499,
    "video_token_id": 509,
    "vision_config": vision.VISION | {"model_type": "qwen3_omni_moe_vision_encoder"},
    "vision_end_token_id": 511,
    "vision_start_token_id": 510,
}
CONFIG = {
    "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
    "assistant_token_id": 498,
    "code2wav_config": {"model_type": "qwen3_omni_moe_code2wav"},
    "dtype": "bfloat16",
    "enable_audio_output": True,
    "im_end_token_id": 497,
    "im_start_token_id": 496,
    "model_type": "qwen3_omni_moe",
    "system_token_id": 495,
    "talker_config": {"model_type": "qwen3_omni_moe_talker"},
    "thinker_config": THINKER,
    "tts_bos_token_id": 494,
    "tts_eos_token_id": 493,
    "tts_pad_token_id": 492,
    "user_token_id": 499,
}
LENGTHS = [60, 15]
SHARD = "150KB"
PREFIX = "thinker."


def thinker():
    from transformers import Qwen3OmniMoeThinkerConfig, Qwen3OmniMoeThinkerForConditionalGeneration
    return Qwen3OmniMoeThinkerForConditionalGeneration, Qwen3OmniMoeThinkerConfig


def build(config):
    model, settings = thinker()
    return model(settings(**config["thinker_config"]))


def publish(directory):
    """Makes what thinks a part of the whole, and adds a tensor of each part that talks."""
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    others = {name: torch.zeros(2, 2, dtype=torch.bfloat16) for name in ["talker.model.norm.weight", "code2wav.decoder.0.conv.weight"]}
    for at, file in enumerate(sorted(directory.glob("*.safetensors"))):
        tensors = {PREFIX + name: tensor for name, tensor in load_file(file).items()}
        save_file(tensors | (others if at == 0 else {}), file, metadata={"format": "pt"})
        if at == 0:
            index["weight_map"] |= {name[len(PREFIX):] if name.startswith(PREFIX) else name: file.name for name in others}
    index["weight_map"] = {
        name if name in others else PREFIX + name: shard for name, shard in sorted(index["weight_map"].items())
    }
    text = json.dumps(index, indent=2) + "\n"
    (directory / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def own_name(name):
    """The class's own name of a published tensor."""
    name = name[len(PREFIX):]
    if name.startswith("model."):
        return name.replace("model.", "model.language_model.", 1)
    return name if name.startswith("lm_head.") else "model." + name


def load(directory, dtype, attn_implementation, experts_implementation):
    model, settings = thinker()
    model = model._from_config(
        settings(**THINKER), dtype=dtype, attn_implementation=attn_implementation,
        experts_implementation=experts_implementation,
    )
    tensors = {}
    for file in directory.glob("*.safetensors"):
        tensors |= {own_name(name): tensor for name, tensor in load_file(file).items() if name.startswith(PREFIX)}
    count = THINKER["text_config"]["num_experts"]
    for layer in range(THINKER["text_config"]["num_hidden_layers"]):
        experts = f"model.language_model.layers.{layer}.mlp.experts."
        def stack(part):
            return torch.stack([tensors.pop(f"{experts}{expert}.{part}_proj.weight") for expert in range(count)])
        tensors[experts + "gate_up_proj"] = torch.cat([stack("gate"), stack("up")], dim=1)
        tensors[experts + "down_proj"] = stack("down")
    missing, unexpected = model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, strict=False)
    assert not unexpected and all("rotary" in name or "positional" in name for name in missing), (missing, unexpected)
    return model
