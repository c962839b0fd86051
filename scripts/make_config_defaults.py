#!/usr/bin/env python3
"""Writes what transformers takes where a `config.json` leaves a key out, and which keys may be null.

    python3 scripts/make_config_defaults.py

formats/import/src/config/defaults.json    for every `model_type`: `absent`, the values of absent keys (a key
    whose default is null is not there), `not_null`, keys that must not be null, and `aliases`, other names of keys
formats/import/tests/data/absent_keys.json  for every tiny checkpoint of engine/runtime/tests/data/families and every
    key of its configuration: the keys that change in the configuration as transformers writes it when
    that one is left out, or null where transformers refuses what is left

Both name the version of transformers that they are from. Whether it refuses a configuration is found
by building the tiny model and running it. Needs torch and transformers.
"""
import copy
import dataclasses
import importlib
import json
import logging
import pathlib
import sys
import warnings

import torch
import transformers
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedConfig,
)

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "families")]

# Families in scripts/families whose configurations are tried.
FAMILIES = [
    "afmoe", "deepseek_v2", "deepseek_v2_lite", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe", "exaone_moe", "gemma4", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "gpt_oss",
    "gemma3", "granite", "granite_moe", "granite_moe_hybrid", "granite_moe_hybrid_dense", "granite_moe_shared", "hunyuan_v1_moe", "laguna", "lfm2", "lfm2_moe", "llama", "llama_bias", "minimax_m2", "mistral", "mixtral", "nemotron_h", "nemotron_h_dense", "olmoe", "qwen2",
    "qwen2_moe", "qwen3", "qwen3_5_moe", "qwen3_moe", "qwen3_next", "qwen3_omni_moe", "qwen3_vl_moe", "solar_open",
]
# Keys that change nothing at inference.
IGNORED = {
    "attention_dropout", "initializer_range", "max_window_layers", "num_mtp_layers", "output_router_logits",
    "pad_token_id", "pretraining_tp", "router_aux_loss_coef", "router_jitter_noise", "use_cache",
    "vocab_size_per_layer_input",
}
# Families whose windows one of these keys is about.
WINDOWED = {"dots1", "qwen2", "qwen2_moe", "qwen3"}
# Classes of text parts that AutoModel does not find.
CLASSES = {"qwen3_omni_moe_text": "Qwen3OmniMoeThinkerTextModel"}
# Models that transformers has no class of, with the one that theirs is a copy of.
COPIES = {"kimi_k2": "deepseek_v3"}
# Families that read a key by both of its names themselves, so that errors name the one in the file.
READS_ALIASES = {"qwen3_moe", "qwen3_vl_moe_text"}
# Keys that a class has under another name than the reader of all families, or renames itself.
LFM2 = {"norm_eps": "rms_norm_eps", "tie_embedding": "tie_word_embeddings"}
NEMOTRON = {
    "attention_head_dim": "head_dim", "layer_norm_epsilon": "rms_norm_eps", "mamba_chunk_size": "chunk_size",
    "mamba_conv_bias": "use_conv_bias", "mamba_d_conv": "conv_kernel", "mamba_dt_init_floor": "time_step_floor",
    "mamba_dt_limit": "time_step_limit", "mamba_dt_max": "time_step_max", "mamba_dt_min": "time_step_min", "mamba_expand": "expand",
    "mamba_n_groups": "n_groups", "norm_eps": "rms_norm_eps",
}
RENAMED = {"nemotron_h": NEMOTRON, "lfm2": LFM2 | {"block_ff_dim": "intermediate_size"}, "lfm2_moe": LFM2}
# Keys that a class overwrites whatever they are, or lacks although it has kinds of layers.
OVERWRITTEN = {
    "deepseek_v32": {"head_dim"}, "glm_moe_dsa": {"head_dim"}, "laguna": {"global_head_dim", "sliding_window_pattern"},
}
# Parts that no test leaves keys out of.
UNTRIED = {"qwen3_omni_moe", "qwen3_vl_moe"}
# Stores that were converted from GGUF files leave these out where there is none. Who takes them for
# absent in another checkpoint looks for tensors that it has not, or leaves some over, and says which.
ABSENT_IN_STORES = {"q_lora_rank", "hidden_size_per_layer_input"}
# What is no model's configuration but that of the one who saved it.
BOOKKEEPING = {"architectures", "dtype", "model_type", "torch_dtype", "transformers_version", "_name_or_path"}


def qwen3_moe() -> dict:
    """The tiny checkpoint of make_tiny_checkpoint.py."""
    path = ROOT / "engine" / "runtime" / "tests" / "data" / "tiny-qwen3-moe" / "config.json"
    return json.loads(path.read_text(encoding="utf-8"))


def configuration(family: str) -> dict:
    """That of a family's text part, unquantized."""
    config = qwen3_moe() if family == "qwen3_moe" else copy.deepcopy(importlib.import_module(family).CONFIG)
    config = config.get("thinker_config", config)
    config = config.get("text_config", config)
    config.pop("quantization_config", None)
    return config


def attempt(config: dict) -> dict | None:
    """The configuration as transformers writes it, or none if it refuses it or its model."""
    try:
        read = AutoConfig.for_model(**copy.deepcopy(config))
        options = {"attn_implementation": "eager", "experts_implementation": "eager"}
        if read.model_type in CLASSES:
            module = importlib.import_module(type(read).__module__.replace(".configuration_", ".modeling_"))
            model = getattr(module, CLASSES[read.model_type])._from_config(read, **options).eval()
        else:
            kind = AutoModelForCausalLM if type(read) in MODEL_FOR_CAUSAL_LM_MAPPING else AutoModel
            model = kind.from_config(read, **options).eval()
        with torch.no_grad():
            model(torch.arange(9)[None], use_cache=False)
    except Exception:  # Whatever it is, there is no model.
        return None
    return json.loads(json.dumps(read.to_dict(), default=str))


def ignored(family: str) -> set[str]:
    return IGNORED - {"max_window_layers"} if family in WINDOWED else IGNORED


def defaults(model_type: str, ignored: set[str] = IGNORED) -> dict:
    """What the class of a configuration says of keys that are absent."""
    kind = type(AutoConfig.for_model(model_type))
    common = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    fields = [field for field in dataclasses.fields(kind) if field.name not in common | ignored]
    found = {field.name: field.default for field in fields}
    # JSON has no infinity; readers take it where the key is absent.
    found.pop("time_step_limit", None)
    whole = kind()
    if "text_config" in found:
        # What is around the text part says this alone.
        return {"tie_word_embeddings": whole.tie_word_embeddings}
    rope = dict(getattr(whole, "rope_parameters", None) or {})
    nested = set(whole.nested_rope_parameter_keys(rope)) if rope else set()
    if rope and not nested:
        # These have keys of their own beside the object, which come before the defaults.
        found["rope_theta"] = rope.pop("rope_theta")
        found["partial_rotary_factor"] = rope.pop("partial_rotary_factor", None)
        # The model's number of positions stands in where none is given.
        if rope.get("original_max_position_embeddings") == whole.max_position_embeddings:
            del rope["original_max_position_embeddings"]
    found["rope_parameters"] = None if rope in ({}, {"rope_type": "default"}) else rope
    kinds = list(getattr(whole, "layer_types", None) or [])
    # Nemotron-H's kinds are those of blocks of one part, in no interval.
    if "linear_attention" in kinds and "full_attention" in kinds and "moe" not in kinds:
        found["full_attention_interval"] = kinds.index("full_attention") + 1
    if nested:
        full = kinds.index("full_attention")
        found["sliding_window_pattern"] = full + 1
        found["global_head_dim"] = whole.per_layer_config[full].head_dim
    return {
        key: value for key, value in sorted(found.items())
        if value is not None and key not in ABSENT_IN_STORES | OVERWRITTEN.get(model_type, set())
    }


def aliases(model_type: str) -> dict:
    """Returns the other names of keys, each with the name that the family reads."""
    if model_type in READS_ALIASES:
        return {}
    return dict(type(AutoConfig.for_model(model_type)).attribute_map) | RENAMED.get(model_type, {})


def write(path: pathlib.Path, value: dict) -> None:
    text = json.dumps({"transformers": transformers.__version__} | value, indent=1, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    table, absent = {}, {}
    for family in FAMILIES:
        config = configuration(family)
        model_type, inner = config["model_type"], config
        whole = attempt(config)
        assert whole is not None, family
        entry = table.setdefault(model_type, {"absent": defaults(model_type, ignored(family))})
        nullable = set()
        tried = set(entry["absent"]) | set(inner) | {"head_dim", "rope_theta"}
        if model_type == "gemma4_text":
            tried |= {"per_layer_config"}
        tried -= BOOKKEEPING | ignored(family)
        for key in sorted(tried):
            if attempt(config | {key: None}) is not None:
                nullable.add(key)
        # A key may be null if any configuration of the family may have it so.
        not_null = tried - nullable
        entry["not_null"] = sorted(not_null & set(entry.get("not_null", not_null)) - {"sliding_window_pattern"})
        if family in UNTRIED:
            continue
        changes = {}
        for key in sorted(set(config) - BOOKKEEPING - ignored(family)):
            left = attempt({name: value for name, value in config.items() if name != key})
            changes[key] = left if left is None else {
                name: value for name, value in left.items()
                if value != whole.get(name) and name not in BOOKKEEPING | ignored(family)
            }
        absent[family.replace("_", "-")] = changes
        print(family, len(entry["absent"]), len(entry["not_null"]), flush=True)
    for model_type in ["gemma4", "qwen3_5_moe", "qwen3_omni_moe_thinker", "qwen3_vl_moe"]:
        table[model_type] = {"absent": defaults(model_type), "not_null": ["tie_word_embeddings"]}
    for model_type, entry in table.items():
        entry["aliases"] = aliases(model_type)
        renamed = RENAMED.get(model_type, {})
        entry["absent"] = {renamed.get(key, key): value for key, value in entry["absent"].items()}
        entry["not_null"] = sorted({renamed.get(key, key) for key in entry["not_null"]})
    table |= {copy: table[model_type] for copy, model_type in COPIES.items()}
    write(ROOT / "formats" / "import" / "src" / "config" / "defaults.json", {"families": table})
    write(ROOT / "formats" / "import" / "tests" / "data" / "absent_keys.json", {"families": absent})


if __name__ == "__main__":
    main()
