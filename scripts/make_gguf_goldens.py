#!/usr/bin/env python3
"""Makes small GGUF files with llama.cpp's own tools, and what llama.cpp computes from them.

    python3 scripts/make_gguf_goldens.py --llama-cpp SOURCES --quantize llama-quantize [NAME ...]

SOURCES is llama.cpp's source tree (for convert_hf_to_gguf.py, which the gguf package lacks; the
source package of llama-cpp-python has it), `llama-quantize` is its quantizer. Each model is a family
of scripts/families with sizes that blocks of 32 or 256 divide, seeded random weights, the tokenizer
of tiny-qwen3-moe, converted and quantized. In engine/runtime/tests/data/gguf:

NAME.gguf           the model
NAME.json           tokens: what is run; texts: with the ids that llama.cpp gives, special tokens read
NAME.safetensors    all F32, P = the last positions of `tokens`
    logits  [P, V]  by llama.cpp from the file's weights written as F32, so that it rounds no activations
gemma4-bf16.gguf    the tiny family of that name, as llama.cpp's converter writes it in BF16; likewise those of PUBLISHED

Needs torch, transformers, safetensors, sentencepiece, llama-cpp-python, and gguf of the same sources (PYTHONPATH=SOURCES/gguf-py).
"""
import argparse
import contextlib
import ctypes
import importlib.util
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

import gguf
import llama_cpp
import numpy as np
import torch
from safetensors.numpy import save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import make_tiny_families as tiny  # noqa: E402
from make_golden import ROOT, validation_tokens  # noqa: E402

DATA = ROOT / "engine" / "runtime" / "tests" / "data" / "gguf"
TOKENS, POSITIONS = 24, 4
NARROW = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 512}
LATENT = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2, "vocab_size": 512,
    "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "moe_intermediate_size": 32,
}

# Family, what differs from its configuration, and the quantizer's arguments.
MODELS = {
    "qwen3-moe": ("qwen3_moe", {**NARROW, "head_dim": 24}, ["Q4_0"]),
    "k-quants": (
        "qwen3_moe",
        {"hidden_size": 256, "moe_intermediate_size": 256, "num_experts": 3, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 512},
        ["--token-embedding-type", "q3_k", "--output-tensor-type", "q6_k",
         "--tensor-type", "attn_q=q5_k", "--tensor-type", "attn_k=iq4_xs", "--tensor-type", "attn_v=q8_0",
         "--tensor-type", "ffn_gate_exps=q2_k", "--tensor-type", "ffn_up_exps=q4_k",
         "--tensor-type", "ffn_down_exps=iq4_xs", "Q4_K_M"],
    ),
    "olmoe": ("olmoe", {**NARROW, "num_key_value_heads": 4, "intermediate_size": 32}, ["Q5_1"]),
    "mixtral": ("mixtral", {**NARROW, "intermediate_size": 64}, ["Q8_0"]),
    "granite-moe": ("granite_moe", {**NARROW, "intermediate_size": 32}, ["Q4_1"]),
    "qwen2-moe": (
        "qwen2_moe",
        {**NARROW, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64, "mlp_only_layers": []},
        ["Q5_0"],
    ),
    "qwen3-next": (
        "qwen3_next",
        {**NARROW, "num_hidden_layers": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
         "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2,
         "linear_num_value_heads": 4},
        ["Q8_0"],
    ),
    # llama.cpp rounds the borders of YaRN's mixture, which this model was trained without: here the
    # upper one is a whole number but for 1e-6, and the lower one below zero.
    "gpt-oss": (
        "gpt_oss",
        {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"],
         "rope_scaling": {"beta_fast": 32.0, "beta_slow": 32 / (2 * math.pi) * 150000 ** (-(2 - 1e-6) / 8), "factor": 8.0,
                          "original_max_position_embeddings": 32, "rope_type": "yarn", "truncate": False}},
        ["MXFP4_MOE"],
    ),
    # llama.cpp takes both magnitudes of YaRN to be the same, and one epsilon for all norms.
    "deepseek-v2-lite": (
        "deepseek_v2_lite",
        {**LATENT, "intermediate_size": 64,
         "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 8, "mscale": 0.707, "mscale_all_dim": 0.707,
                          "original_max_position_embeddings": 32, "type": "yarn"}},
        ["Q8_0"],
    ),
    "glm4-moe-lite": (
        "glm4_moe_lite",
        {**LATENT, "intermediate_size": 64, "q_lora_rank": 32, "rms_norm_eps": 1e-6, "scoring_func": "sigmoid"},
        ["Q8_0"],
    ),
    "bailing-moe-v2": (
        "bailing_moe_v2",
        {"hidden_size": 96, "num_attention_heads": 6, "head_dim": 16, "intermediate_size": 64, "moe_intermediate_size": 32,
         "moe_shared_expert_intermediate_size": 32, "num_hidden_layers": 2, "num_nextn_predict_layers": 0},
        ["Q8_0"],
    ),
    "ernie4-5-moe": (
        "ernie4_5_moe",
        {"hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32, "num_hidden_layers": 2,
         "moe_layer_end_index": -1},
        ["Q8_0"],
    ),
    "gemma4": (
        "gemma4",
        {"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": 2,
         "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 20},
        ["Q8_0"],
    ),
    # Three value heads for every key head: no order is its own reverse.
    "qwen3-5-moe": (
        "qwen3_5_moe",
        {"hidden_size": 64, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64, "num_hidden_layers": 2,
         "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 6},
        ["Q8_0"],
    ),
}

# Tiny families whose files llama.cpp's converter writes in BF16, without logits: their weights are those of the
# published layout, of which transformers' logits are known.
PUBLISHED = [
    "gemma4-bf16", "bailing-moe-v2-bf16", "ernie4-5-moe-bf16", "glm4-moe", "kimi-k2", "minimax-m2", "dots1", "solar-open",
    "granite-moe-shared", "qwen3-vl-moe", "llama", "llama-bias", "qwen2", "qwen3", "granite", "gemma3",
    "lfm2",
    "lfm2-moe",
    "granite-moe-hybrid",
    "nemotron-h",
    "afmoe",
    "exaone-moe",
    "deepseek-v32",
    "glm-moe-dsa",
    "laguna",
    "hunyuan-v1-moe",
]

QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "bos_token_id": 0,
    "decoder_sparse_step": 1, "eos_token_id": 2, "head_dim": 24, "hidden_act": "silu",
    "hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 256, "mlp_only_layers": [],
    "model_type": "qwen3_moe", "moe_intermediate_size": 32, "norm_topk_prob": True,
    "num_attention_heads": 4, "num_experts": 5, "num_experts_per_tok": 2, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_sliding_window": False,
    "vocab_size": 512,
}

TEXTS = [
    "Once upon a time there was a little hen.",
    "Don't   stop,\tI'LL we've 1234567 times!",
    "line one\r\nline two\r\n\r\n  indented\n\n\n",
    "naïve café — “quotes” … €5",
    "Příliš žluťoučký kůň úpěl ďábelské ódy",
    "שלום עולם  مرحبا بالعالم",
    "日本語のテキスト。漢字とかな 中文 한국어",
    "Привет, мир! Γειά σου Κόσμε",
    "नमस्ते दुनिया สวัสดีชาวโลก",
    "👍 👩‍👩‍👧‍👦 🇩🇪 🏳️‍🌈 1️⃣",
    "fn main() { println!(\"{:?}\", 0x1F); } // ok\n\t\treturn;",
    "<|im_start|>user\nIgnore that.<|im_end|>\n",
    "trailing spaces   ",
]


def module(path: pathlib.Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def family(name: str, changes: dict):
    if name == "qwen3_moe":
        loaded = type(sys)("qwen3_moe")
        loaded.CONFIG = dict(QWEN3_MOE)
    else:
        loaded = module(tiny.FAMILIES / f"{name}.py")
    if "text_config" in loaded.CONFIG:
        loaded.CONFIG["text_config"].update(changes)
    else:
        loaded.CONFIG = {**loaded.CONFIG, **changes}
    return loaded


def hunyuan_parameters(self) -> None:
    """What the converter writes of Hunyuan-A13B. It asserts that heads have 128 elements where it stretches the base; the tiny
    checkpoint's base is stretched here by the same rule."""
    from conversion import base
    rope, dim, layers = self.rope_parameters, self.hparams["head_dim"], self.hparams["num_hidden_layers"]
    self.rope_parameters = {"rope_type": "default", "rope_theta": rope["rope_theta"] * rope["alpha"] ** (dim / (dim - 2))}
    base.TextModel.set_gguf_parameters(self)
    self.gguf_writer.add_expert_shared_feed_forward_length(self.hparams["intermediate_size"])
    for key, add in [
        ("moe_intermediate_size", self.gguf_writer.add_expert_feed_forward_length),
        ("moe_topk", self.gguf_writer.add_expert_used_count), ("num_shared_expert", self.gguf_writer.add_expert_shared_count),
    ]:
        assert self.hparams[key] == [self.hparams[key][0]] * layers
        add(self.hparams[key][0])


def convert(sources: pathlib.Path, checkpoint: pathlib.Path, out: pathlib.Path, pre: str, kind: str = "f32") -> None:
    """convert_hf_to_gguf.py knows a pre-tokenizer by what it does to a text, which a tiny vocabulary
    hides: it is told the name."""
    sys.path.insert(0, str(sources))
    from conversion import base
    import convert_hf_to_gguf
    base.TextModel.get_vocab_base_pre = lambda *_: pre
    # It asks for GLM's special tokens, which the tiny tokenizer has not.
    base.TextModel._set_vocab_glm = base.TextModel._set_vocab_gpt2
    from conversion import glm
    glm.SolarOpenModel.set_vocab = base.TextModel._set_vocab_gpt2
    # It asks for a tokenizer that adds the first token.
    from conversion import deepseek
    deepseek.DeepseekV32Model.set_vocab = base.TextModel._set_vocab_gpt2
    # It asks for the SentencePiece vocabulary that ERNIE-4.5 has.
    from conversion import ernie
    ernie.Ernie4_5Model.set_vocab = base.TextModel._set_vocab_gpt2
    from conversion import hunyuan
    hunyuan.HunYuanMoEModel.set_vocab = base.TextModel._set_vocab_gpt2
    hunyuan.HunYuanMoEModel.set_gguf_parameters = hunyuan_parameters
    arguments = sys.argv
    sys.argv = ["convert_hf_to_gguf.py", str(checkpoint), "--outfile", str(out), "--outtype", kind]
    config = checkpoint / "config.json"
    if any(name in config.read_text() for name in ["Qwen3Next", "Qwen3_5Moe", "Glm4MoeLite"]):
        sys.argv.append("--no-mtp")
    # llama.cpp wants a rank for queries of models that have not the 27 layers of V2-Lite; 0 is none.
    config.write_text(config.read_text().replace('"q_lora_rank": null', '"q_lora_rank": 0'))
    # Gemma's end of a channel, which the tiny vocabulary has not, would become one more token.
    settings = json.loads((checkpoint / "tokenizer_config.json").read_text())
    settings.pop("eoc_token", None)
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(settings))
    try:
        convert_hf_to_gguf.main()
    finally:
        sys.argv = arguments
        sys.path.remove(str(sources))


@contextlib.contextmanager
def loaded(path: pathlib.Path):
    parameters = llama_cpp.llama_model_default_params()
    parameters.n_gpu_layers = 0
    parameters.use_mmap = parameters.use_extra_bufts = False
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
    assert model, path
    try:
        yield model
    finally:
        llama_cpp.llama_model_free(model)


def logits(path: pathlib.Path, tokens: list[int]) -> np.ndarray:
    """Logits after the last positions, keys and values in F32."""
    with loaded(path) as model:
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = 64
        parameters.n_threads = parameters.n_threads_batch = 1
        parameters.type_k = parameters.type_v = 0
        parameters.flash_attn_type = 0
        context = llama_cpp.llama_init_from_model(model, parameters)
        assert context
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for at, token in enumerate(tokens):
            batch.token[at], batch.pos[at], batch.n_seq_id[at], batch.logits[at] = token, at, 1, 1
            batch.seq_id[at][0] = 0
        assert llama_cpp.llama_decode(context, batch) == 0
        vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        rows = range(len(tokens) - POSITIONS, len(tokens))
        out = [np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, at), (vocabulary,)).copy() for at in rows]
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
    return np.stack(out)


def token_ids(path: pathlib.Path, texts: list[str], add_special: bool) -> list[list[int]]:
    with loaded(path) as model:
        vocabulary = llama_cpp.llama_model_get_vocab(model)
        out = []
        for text in texts:
            data = text.encode()
            ids = (ctypes.c_int32 * (len(data) + 8))()
            count = llama_cpp.llama_tokenize(vocabulary, data, len(data), ids, len(ids), add_special, True)
            assert count >= 0
            out.append(list(ids[:count]))
    return out


def pieces(directory: pathlib.Path) -> None:
    """Gives a checkpoint a SentencePiece vocabulary in place of its own, as Mixtral has one."""
    import sentencepiece
    for file in directory.glob("tokenizer*"):
        file.unlink()
    sentencepiece.SentencePieceTrainer.train(
        input=str(ROOT / "data" / "validation.txt"), model_prefix=str(directory / "tokenizer"), vocab_size=512,
        model_type="bpe", byte_fallback=True, character_coverage=0.99, minloglevel=2,
        add_dummy_prefix=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
    )


def make_model(name: str, options) -> None:
    which, changes, arguments = MODELS[name]
    described = family(which, changes)
    with tempfile.TemporaryDirectory() as temporary:
        temporary = pathlib.Path(temporary)
        tiny.make_checkpoint(described, temporary / "hf")
        tokens = validation_tokens(temporary / "hf")[:TOKENS]
        if name == "mixtral":
            pieces(temporary / "hf")
        whole, floats, out = temporary / "whole.gguf", temporary / "floats.gguf", DATA / f"{name}.gguf"
        convert(options.llama_cpp, temporary / "hf", whole, "qwen2")
        kinds, kind = arguments[:-1], arguments[-1]
        run = [options.quantize, *kinds, str(whole), str(out), kind]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        run = [options.quantize, "--allow-requantize", str(out), str(floats), "F32"]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = logits(floats, tokens)
    save_file({"logits": found}, DATA / f"{name}.safetensors")
    described = {
        "tokens": tokens,
        "texts": [{"text": text, "ids": ids} for text, ids in zip(TEXTS, token_ids(out, TEXTS, False))],
        "with_special": token_ids(out, TEXTS[:1], True)[0],
    }
    (DATA / f"{name}.json").write_text(json.dumps(described, ensure_ascii=True) + "\n")
    (DATA / f"{name}.safetensors").chmod(0o644)
    print(f"{name}: {out.stat().st_size} bytes, logits spread by {found.std():.3f}")
    for tensor in gguf.GGUFReader(out).tensors:
        print("   ", tensor.name, tensor.tensor_type.name, list(tensor.shape))


def make_published(options, name: str, out: pathlib.Path) -> None:
    """A tiny family as it is published. llama.cpp rounds Gemma's GELU, so its logits say less than weights do."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(temporary) / "hf"
        shutil.copytree(tiny.DATA / name, directory)
        # The converter knows Kimi-K2 by its class, but asks transformers for its configuration.
        config = directory / "config.json"
        config.write_text(config.read_text().replace('"kimi_k2"', '"deepseek_v3"'))
        convert(options.llama_cpp, directory, out, "qwen2", "bf16")
    out.chmod(0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", type=pathlib.Path, required=True)
    parser.add_argument("--quantize", required=True)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    DATA.mkdir(parents=True, exist_ok=True)
    names = options.names or [*PUBLISHED, *MODELS]
    for name in names:
        if name in PUBLISHED:
            make_published(options, name.removesuffix("-bf16"), DATA / f"{name}.gguf")
        else:
            make_model(name, options)


if __name__ == "__main__":
    main()
