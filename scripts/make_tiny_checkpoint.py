#!/usr/bin/env python3
"""Makes the seeded random checkpoints that the tests run on.

    python3 scripts/make_tiny_checkpoint.py

engine/runtime/tests/data/tiny-qwen3-moe     every size odd: hidden 72, five experts of 40, a dense layer
                                     between, untied head, bf16, f16 and f32, three shards
engine/runtime/tests/data/tiny-tied          the other options: tied head, attention biases, expert weights
                                     not renormalised, every second layer dense, one file, and the
                                     newer spelling of the configuration
apps/cli/tests/data/published-layout every key of Qwen3-30B-A3B's published config.json, two layers,
                                     padded vocabulary, list of end tokens, four shards

Tensors lie on disk under their published names, one per expert and projection, whatever names newer
versions of transformers use in memory. Needs torch, safetensors and tokenizers.
"""
import json
import pathlib

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The split of Qwen's tokenizer.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TINY = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 0,
    "decoder_sparse_step": 1,
    "eos_token_id": 2,
    "head_dim": 24,
    "hidden_act": "silu",
    "hidden_size": 72,
    "intermediate_size": 100,
    "max_position_embeddings": 256,
    "mlp_only_layers": [1],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 40,
    "norm_topk_prob": True,
    "num_attention_heads": 6,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 517,
}

TIED = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": True,
    "bos_token_id": None,
    "decoder_sparse_step": 2,
    "dtype": "bfloat16",
    "eos_token_id": [2, 0],
    "head_dim": 18,
    "hidden_act": "silu",
    "hidden_size": 44,
    "intermediate_size": 70,
    "layer_types": ["full_attention"] * 5,
    "max_position_embeddings": 200,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 17,
    "norm_topk_prob": False,
    "num_attention_heads": 3,
    "num_experts": 9,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 5,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 512,
}

PUBLISHED = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 400,
    "decoder_sparse_step": 1,
    "eos_token_id": 402,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 192,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 48,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 448,
}


def tensors(config: dict, mixed: bool) -> dict[str, torch.Tensor]:
    """Random weights that keep activations near 1, so that no part of the graph is idle."""
    generator = torch.Generator().manual_seed(20250701)
    out: dict[str, torch.Tensor] = {}

    def add(name: str, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> None:
        values = torch.randn(shape, generator=generator) * (scale / shape[-1] ** 0.5)
        out[name] = values.to(dtype if mixed else torch.bfloat16)

    def norm(name: str, width: int) -> None:
        values = 1 + 0.2 * torch.randn(width, generator=generator)
        out[name] = values.to(torch.float32 if mixed else torch.bfloat16)

    hidden, head = config["hidden_size"], config["head_dim"]
    queries, keys = (config[f"num_{k}_heads"] * head for k in ("attention", "key_value"))
    add("model.embed_tokens.weight", config["vocab_size"], hidden, scale=hidden**0.5)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        norm(f"{at}.input_layernorm.weight", hidden)
        for name, rows, columns in [
            ("q", queries, hidden), ("k", keys, hidden), ("v", keys, hidden), ("o", hidden, queries)
        ]:
            add(f"{at}.self_attn.{name}_proj.weight", rows, columns, dtype=torch.float16)
            if config["attention_bias"]:
                add(f"{at}.self_attn.{name}_proj.bias", rows, scale=0.3 * rows**0.5)
        norm(f"{at}.self_attn.q_norm.weight", head)
        norm(f"{at}.self_attn.k_norm.weight", head)
        norm(f"{at}.post_attention_layernorm.weight", hidden)
        dense = (layer + 1) % config["decoder_sparse_step"] != 0
        if dense or layer in config["mlp_only_layers"]:
            parts, width = [f"{at}.mlp"], config["intermediate_size"]
        else:
            add(f"{at}.mlp.gate.weight", config["num_experts"], hidden, dtype=torch.float32)
            parts = [f"{at}.mlp.experts.{e}" for e in range(config["num_experts"])]
            width = config["moe_intermediate_size"]
        for part in parts:
            add(f"{part}.gate_proj.weight", width, hidden, scale=1.5)
            add(f"{part}.up_proj.weight", width, hidden, scale=1.5)
            add(f"{part}.down_proj.weight", hidden, width, scale=1.5)
    norm("model.norm.weight", hidden)
    if not config["tie_word_embeddings"]:
        add("lm_head.weight", config["vocab_size"], hidden, scale=2.0)
    return out


def write_shards(directory: pathlib.Path, weights: dict[str, torch.Tensor], count: int) -> None:
    """Writes `count` files of about the same size, and the index that names them."""
    if count == 1:
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        (directory / "model.safetensors").chmod(0o644)
        return
    total = sum(t.numel() * t.element_size() for t in weights.values())
    shards: list[dict[str, torch.Tensor]] = [{} for _ in range(count)]
    done = 0
    for name, tensor in weights.items():
        shards[done * count // total][name] = tensor
        done += tensor.numel() * tensor.element_size()
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{count:05}.safetensors"
        save_file(shard, directory / name, metadata={"format": "pt"})
        (directory / name).chmod(0o644)
        weight_map |= {tensor: name for tensor in shard}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(directory / "model.safetensors.index.json", index)


def write_json(path: pathlib.Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def tokenizer(size: int, specials_first: bool) -> Tokenizer:
    """A byte-level BPE of `size` tokens, special tokens included, trained on the committed text."""
    out = Tokenizer(models.BPE())
    out.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(pattern=Regex(PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    out.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size if specials_first else size - len(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=SPECIALS if specials_first else [],
        show_progress=False,
    )
    text = (ROOT / "data" / "calibration.txt").read_text(encoding="utf-8")
    out.train_from_iterator(text.split("\n\n"), trainer)
    out.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    return out


def make(directory: pathlib.Path, config: dict, shards: int, generation: dict, first: bool) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("*.safetensors*"):
        old.unlink()
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", generation)
    write_shards(directory, tensors(config, mixed=shards == 3), shards)
    tokens = tokenizer(512 if first else 403, first)
    tokens.save(str(directory / "tokenizer.json"), pretty=False)
    write_json(directory / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast" if first else "Qwen2Tokenizer",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": config["max_position_embeddings"],
        "chat_template": TEMPLATE,
    })
    ids = [tokens.token_to_id(token) for token in SPECIALS]
    size = sum(file.stat().st_size for file in directory.iterdir() if "golden" not in file.name)
    print(f"{directory.relative_to(ROOT)}: {size} bytes, {tokens.get_vocab_size()} tokens, {ids}")


def main() -> None:
    make(ROOT / "engine/runtime/tests/data/tiny-qwen3-moe", TINY, 3, {
        "bos_token_id": 0, "do_sample": True, "eos_token_id": [2, 0], "temperature": 0.7,
    }, True)
    make(ROOT / "engine/runtime/tests/data/tiny-tied", TIED, 1, {"eos_token_id": [2, 0]}, True)
    make(ROOT / "apps/cli/tests/data/published-layout", PUBLISHED, 4, {
        "bos_token_id": 400,
        "do_sample": True,
        "eos_token_id": [402, 400],
        "pad_token_id": 400,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "transformers_version": "4.51.0",
    }, False)


if __name__ == "__main__":
    main()
