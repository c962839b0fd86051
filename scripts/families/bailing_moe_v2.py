"""Ling 2.0: half of every head is turned, DeepSeek-V3's experts under other keys, queries, keys and values in
one tensor. transformers has no class of it; what it computes is GLM-4.5's with norms of heads, whose class
is used under Ling's names. That this is so, llama.cpp's logits of bailing-moe-v2.gguf say."""
import pathlib
import re
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import glm4_moe_lite as glm  # noqa: E402

NAME = "bailing-moe-v2"
CONFIG = {
    "architectures": ["BailingMoeV2ForCausalLM"],
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_bailing_moe_v2.BailingMoeV2Config"},
    "embedding_dropout": 0.0,
    "eos_token_id": 2,
    "first_k_dense_replace": 1,
    "head_dim": 20,
    "hidden_act": "silu",
    "hidden_size": 40,
    "initializer_range": 0.02,
    "intermediate_size": 56,
    "max_position_embeddings": 256,
    "max_window_layers": 20,
    "model_type": "bailing_moe_v2",
    "moe_intermediate_size": 16,
    "moe_router_enable_expert_bias": True,
    "moe_shared_expert_intermediate_size": 16,
    "n_group": 3,
    "norm_topk_prob": True,
    "num_attention_heads": 6,
    "num_experts": 9,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "num_nextn_predict_layers": 1,
    "num_shared_experts": 2,
    "output_dropout": 0.0,
    "pad_token_id": 0,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 600000,
    "routed_scaling_factor": 2.5,
    "router_dtype": "fp32",
    "score_function": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 2,
    "torch_dtype": "bfloat16",
    "use_bias": False,
    "use_cache": True,
    "use_qk_norm": True,
    "use_qkv_bias": False,
    "use_rmsnorm": True,
    "use_sliding_window": False,
    "vocab_size": 512,
}
LENGTHS = [60, 15]
SHARD = "10MB"
SEED = 5

# Names of GLM-4.5's tensors and Ling's.
RENAMED = [
    ("model.embed_tokens.", "model.word_embeddings."),
    ("self_attn.o_proj.", "attention.dense."),
    ("self_attn.q_norm.", "attention.query_layernorm."),
    ("self_attn.k_norm.", "attention.key_layernorm."),
    ("mlp.gate.e_score_correction_bias", "mlp.gate.expert_bias"),
]


def as_glm(config):
    same = [
        "first_k_dense_replace", "head_dim", "hidden_act", "hidden_size", "intermediate_size",
        "max_position_embeddings", "moe_intermediate_size", "n_group", "norm_topk_prob", "num_attention_heads",
        "num_experts_per_tok", "num_hidden_layers", "num_key_value_heads", "partial_rotary_factor", "rms_norm_eps",
        "rope_theta", "routed_scaling_factor", "tie_word_embeddings", "topk_group", "use_qk_norm", "vocab_size",
    ]
    renamed = {"n_routed_experts": config["num_experts"], "n_shared_experts": config["num_shared_experts"]}
    return Glm4MoeConfig(**{key: config[key] for key in same} | renamed | {"attention_bias": False})


def weight(name, parameter, generator):
    return glm.quiet_experts(name, parameter, generator)


def build(config):
    model = Glm4MoeForCausalLM(as_glm(config))
    glm.fill_biases(model, SEED)
    return model


def joined(tensors):
    """Queries above keys above values, and all names as they are published."""
    out = {}
    for name, tensor in tensors.items():
        if name.endswith("self_attn.q_proj.weight"):
            parts = [tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            out[name.replace("self_attn.q_proj", "attention.query_key_value")] = torch.cat(parts)
        elif not re.search(r"self_attn\.[kv]_proj", name):
            for ours, theirs in RENAMED:
                name = name.replace(ours, theirs)
            out[name] = tensor.float() if name.endswith("expert_bias") else tensor
    return out


def apart(tensors, config):
    """What `joined` was made of."""
    out = {}
    queries, keys = (config[f"num_{heads}_heads"] * config["head_dim"] for heads in ["attention", "key_value"])
    for name, tensor in tensors.items():
        if name.endswith("query_key_value.weight"):
            for part, rows in zip("qkv", tensor.split([queries, keys, keys])):
                out[name.replace("attention.query_key_value", f"self_attn.{part}_proj")] = rows
            continue
        for ours, theirs in RENAMED:
            name = name.replace(theirs, ours)
        out[name] = tensor
    return out


def publish(directory):
    file = directory / "model.safetensors"
    tensors = joined(load_file(file))
    generator = torch.Generator().manual_seed(8)
    hidden, layer = CONFIG["hidden_size"], CONFIG["num_hidden_layers"]
    if not CONFIG["num_nextn_predict_layers"]:
        return save_file(tensors, file, metadata={"format": "pt"})
    ones = ["enorm", "hnorm", "final_layernorm", "input_layernorm"]
    tensors |= {f"model.layers.{layer}.{name}.weight": torch.ones(hidden).bfloat16() for name in ones}
    projection = torch.randn(hidden, 2 * hidden, generator=generator).bfloat16()
    tensors[f"model.layers.{layer}.eh_proj.weight"] = projection
    save_file(tensors, file, metadata={"format": "pt"})


def load(directory, **options):
    tensors = apart(load_file(directory / "model.safetensors"), CONFIG)
    further = f"model.layers.{CONFIG['num_hidden_layers']}."
    model = Glm4MoeForCausalLM._from_config(as_glm(CONFIG), **options)
    # Experts of the class are in one tensor.
    fused = {}
    for name in model.state_dict():
        if ".experts." not in name:
            fused[name] = tensors.pop(name)
            continue
        prefix, part = name.rsplit(".", 1)
        def of(expert, part):
            return tensors.pop(f"{prefix}.{expert}.{part}.weight")
        experts = range(CONFIG["num_experts"])
        if part == "gate_up_proj":
            fused[name] = torch.stack([torch.cat([of(e, "gate_proj"), of(e, "up_proj")]) for e in experts])
        else:
            fused[name] = torch.stack([of(e, part) for e in experts])
    assert all(name.startswith(further) for name in tensors), sorted(tensors)
    model.load_state_dict({name: tensor.float() for name, tensor in fused.items()})
    return model.float()


def routers(model):
    return glm.group_routers(model, "Glm4MoeTopkRouter", CONFIG)
