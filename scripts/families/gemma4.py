"""Gemma 4 26B-A4B: experts beside a dense GeGLU, norms around every block, a router with a norm and
scales of its own, sliding-window layers and global ones with other heads, whose keys are values too
and rotate in part, softcapped logits. The checkpoint is multimodal: its vision tower is there to be
left out. The tokenizer is of Gemma's kind: spaces as "▁", bytes for what has no token."""
import json
import pathlib

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers
from transformers import AutoConfig, AutoModelForImageTextToText

NAME = "gemma4"
LENGTHS = [150, 23]
VOCABULARY = 512
SPECIALS = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>"]
CONFIG = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "audio_config": None,
    "audio_token_id": 258881,
    "boa_token_id": 256000,
    "boi_token_id": 255999,
    "dtype": "bfloat16",
    "eoa_token_id": 258883,
    "eoa_token_index": 258883,
    "eoi_token_id": 258882,
    "eos_token_id": [1, 6],
    "image_token_id": 258880,
    "initializer_range": 0.02,
    "model_type": "gemma4",
    "text_config": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attention_k_eq_v": True,
        "bos_token_id": 2,
        "dtype": "bfloat16",
        "enable_moe_block": True,
        "eos_token_id": 1,
        "final_logit_softcapping": 4.0,
        "global_head_dim": 32,
        "head_dim": 16,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 48,
        "hidden_size_per_layer_input": 0,
        "initializer_range": 0.02,
        "intermediate_size": 56,
        "layer_types": [
            "sliding_attention", "full_attention", "sliding_attention", "full_attention",
        ],
        "max_position_embeddings": 256,
        "model_type": "gemma4_text",
        "moe_intermediate_size": 24,
        "num_attention_heads": 4,
        "num_experts": 5,
        "num_global_key_value_heads": 1,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "num_kv_shared_layers": 0,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "full_attention": {
                "partial_rotary_factor": 0.25,
                "rope_theta": 1000000.0,
                "rope_type": "proportional",
            },
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "sliding_window": 40,
        "tie_word_embeddings": True,
        "top_k_experts": 2,
        "use_bidirectional_attention": "vision",
        "use_cache": True,
        "use_double_wide_mlp": False,
        "vocab_size": VOCABULARY,
        "vocab_size_per_layer_input": 262144,
    },
    "tie_word_embeddings": True,
    "video_token_id": 258884,
    "vision_config": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "head_dim": 8,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 16,
        "initializer_range": 0.02,
        "intermediate_size": 24,
        "max_position_embeddings": 128,
        "model_type": "gemma4_vision",
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "patch_size": 4,
        "pooling_kernel_size": 3,
        "position_embedding_size": 16,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 100.0, "rope_type": "axial"},
        "standardize": True,
        "use_clipped_linears": False,
    },
    "vision_soft_tokens_per_image": 4,
}


def build(config: dict):
    model = AutoModelForImageTextToText.from_config(AutoConfig.for_model(**config))
    for layer, scalar in zip(model.model.language_model.layers, [0.75, 1.25, 0.5, 0.875]):
        layer.layer_scalar.fill_(scalar)
    return model


def weight(name: str, parameter: torch.Tensor, generator: torch.Generator) -> torch.Tensor | None:
    values = torch.randn(parameter.shape, generator=generator)
    if "embed_tokens" in name:
        return 0.2 * values
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return 0.6 + 0.1 * values
    if name.endswith("router.proj.weight"):
        return 1.5 * values
    if name.endswith(("router.scale", "router.per_expert_scale")):
        return 1 + 0.3 * values
    return None


def routers(model):
    chosen = CONFIG["text_config"]["top_k_experts"]
    return [
        (module, lambda _, output: (output[0], chosen))
        for module in model.modules()
        if type(module).__name__ == "Gemma4TextRouter"
    ]


def tokenizer(text: str) -> Tokenizer:
    """Special tokens, 256 bytes, then what training finds."""
    out = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    out.normalizer = normalizers.Replace(" ", "▁")
    out.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    out.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
    ])
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIALS + bytes_,
        limit_alphabet=80,
        max_token_length=8,
        show_progress=False,
    )
    out.train_from_iterator(text.split("\n"), trainer)
    fields = json.loads(out.to_str())
    # Byte tokens are ordinary entries of the vocabulary, as in the published file.
    fields["added_tokens"] = [t for t in fields["added_tokens"] if t["content"] in SPECIALS]
    out = Tokenizer.from_str(json.dumps(fields))
    out.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 2)]
    )
    return out


def publish(directory: pathlib.Path) -> None:
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    text = (root / "data" / "calibration.txt").read_text(encoding="utf-8")
    tokenizer(text).save(str(directory / "tokenizer.json"), pretty=False)
    tokens = ["pad", "eos", "bos", "unk", "mask"]
    settings = {f"{name}_token": f"<{name}>" for name in tokens} | {
        "add_bos_token": True,
        "eoc_token": "<channel|>",
        "eot_token": "<turn|>",
        "model_max_length": 256,
        "sot_token": "<|turn>",
        "tokenizer_class": "GemmaTokenizer",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (directory / "generation_config.json").write_text(json.dumps({
        "bos_token_id": 2, "do_sample": True, "eos_token_id": [1, 6], "pad_token_id": 0,
        "temperature": 1.0, "top_k": 64, "top_p": 0.95,
    }, indent=2) + "\n")
