"""Checkpoints under the names of their publishers, where transformers saves other ones or has no class for the family."""
import json
import pathlib
import shutil
import sys

from safetensors.torch import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "families"))
import bailing_moe_v2  # noqa: E402
import qwen3_omni_moe  # noqa: E402

# Keys that Ling has in common with GLM-4.5, whose arithmetic is its own.
SAME_IN_LING = [
    "first_k_dense_replace", "head_dim", "hidden_act", "hidden_size", "intermediate_size", "max_position_embeddings",
    "moe_intermediate_size", "n_group", "norm_topk_prob", "num_attention_heads", "num_experts_per_tok", "num_hidden_layers",
    "num_key_value_heads", "rms_norm_eps", "routed_scaling_factor", "tie_word_embeddings", "topk_group", "use_qk_norm", "vocab_size",
]


def as_published(family: str, directory: pathlib.Path) -> pathlib.Path:
    """The folder that Nestling reads: the one that transformers saved, or one beside it with the publisher's names."""
    if family not in WRITERS:
        return directory
    config = json.loads((directory / "config.json").read_text())
    tensors = {}
    for file in sorted(directory.glob("*.safetensors")):
        tensors |= load_file(file)
    out = directory.parent / "published"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    config, tensors = WRITERS[family](config, tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config))
    return out


def kimi(config: dict, tensors: dict) -> tuple[dict, dict]:
    return config | {"model_type": "kimi_k2"}, tensors


def omni(config: dict, tensors: dict) -> tuple[dict, dict]:
    """The part that thinks, within the whole model."""
    whole = qwen3_omni_moe.CONFIG | {"thinker_config": config}
    return whole, {f"thinker.{name}": tensor for name, tensor in tensors.items()}


def ling(config: dict, tensors: dict) -> tuple[dict, dict]:
    found = {key: config[key] for key in SAME_IN_LING if key in config}
    rope = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling")
    if scaling is None and (rope.get("rope_type") or rope.get("type") or "default") != "default":
        scaling = {key: value for key, value in rope.items() if key not in ("rope_theta", "partial_rotary_factor")}
    found |= {
        "architectures": ["BailingMoeV2ForCausalLM"], "eos_token_id": 2, "model_type": "bailing_moe_v2",
        "moe_router_enable_expert_bias": True, "moe_shared_expert_intermediate_size": config["moe_intermediate_size"],
        "norm_topk_prob": True, "num_experts": config["n_routed_experts"], "num_nextn_predict_layers": 0,
        "num_shared_experts": config["n_shared_experts"], "pad_token_id": 0,
        "partial_rotary_factor": config.get("partial_rotary_factor", rope.get("partial_rotary_factor", 0.5)),
        "rope_scaling": scaling, "rope_theta": config.get("rope_theta", rope.get("rope_theta", 10000.0)), "router_dtype": "fp32",
        "score_function": "sigmoid", "torch_dtype": config.get("dtype") or config.get("torch_dtype") or "float32",
        "use_bias": False, "use_qkv_bias": False, "use_rmsnorm": True,
    }
    return found, bailing_moe_v2.joined(tensors)


WRITERS = {"bailing_moe_v2": ling, "kimi_k2": kimi, "qwen3_omni_moe": omni}
