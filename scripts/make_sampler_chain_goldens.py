#!/usr/bin/env python3
"""Probabilities that llama.cpp's own samplers leave, into engine/text/tests/data/sampler_chain_goldens.json.

Compiles src/llama-sampler.cpp of an unpacked llama.cpp and calls its samplers. Nothing else of llama.cpp is
linked: the samplers used here need no vocabulary.

usage: make_sampler_chain_goldens.py LLAMA_CPP
needs: g++ and the sources, for example vendor/llama.cpp of the sdist of llama-cpp-python (pip download --no-deps
--no-binary :all: llama-cpp-python)
"""

import ctypes
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "engine/text/tests/data"
VOCAB = 61

# One function for each sampler, since C++ vectors and structs by value are awkward with ctypes.
SHIM = r"""
#include "llama-sampler.h"
#include "llama-vocab.h"
#include <vector>
struct llama_vocab::impl {};
llama_vocab::llama_vocab() {}
llama_vocab::~llama_vocab() {}
extern "C" {
void * dry(float m, float b, int allowed, int last_n, const int * breakers, int count) {
    std::vector<std::vector<llama_token>> all;
    for (int i = 0; i < count; ++i) {
        all.emplace_back(breakers + 1, breakers + 1 + breakers[0]);
        breakers += 1 + breakers[0];
    }
    return llama_sampler_init_dry_testing(m, b, allowed, last_n, all);
}
void * penalties(int vocab, int last_n, float r, float f, float p) {
    return llama_sampler_init_penalties(vocab, last_n, r, f, p);
}
void * top_n_sigma(float n) { return llama_sampler_init_top_n_sigma(n); }
void * top_k(int k) { return llama_sampler_init_top_k(k); }
void * typ_p(float p) { return llama_sampler_init_typical(p, 0); }
void * top_p(float p) { return llama_sampler_init_top_p(p, 0); }
void * min_p(float p) { return llama_sampler_init_min_p(p, 0); }
void * xtc(float p, float t) { return llama_sampler_init_xtc(p, t, 0, 1); }
void * temperature(float t, float range, float exponent) { return llama_sampler_init_temp_ext(t, range, exponent); }
void * mirostat(float tau, float eta) { return llama_sampler_init_mirostat_v2(1, tau, eta); }
void accept(void * s, int token) { llama_sampler_accept((llama_sampler *) s, token); }
int apply(void * s, llama_token_data * data, int size, int * left) {
    llama_token_data_array all = { data, (size_t) size, -1, false };
    llama_sampler_apply((llama_sampler *) s, &all);
    for (size_t i = 0; i < all.size; ++i) data[i] = all.data[i];
    *left = (int) all.size;
    return (int) all.selected;
}
void release(void * s) { llama_sampler_free((llama_sampler *) s); }
}
"""

DEFAULTS = {
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "top_n_sigma": 0.0,
    "xtc_probability": 0.0, "xtc_threshold": 0.1, "dry_multiplier": 0.0, "dry_base": 1.75,
    "dry_allowed_length": 2, "dry_penalty_last_n": 1000, "dynatemp_range": 0.0, "dynatemp_exponent": 1.0,
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repeat_last_n": 1000,
    "mirostat_tau": 5.0, "mirostat_eta": 0.1,
}
LLAMA = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
CASES = [
    {"typical_p": 0.9},
    {"typical_p": 0.3, "temperature": 1.5},
    {"typical_p": 0.05},
    {"top_n_sigma": 1.0},
    {"top_n_sigma": 0.3, "temperature": 2.0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.05},
    {"xtc_probability": 1.0, "xtc_threshold": 0.4},
    {"xtc_probability": 1.0, "xtc_threshold": 0.6},
    {"xtc_probability": 1.0, "xtc_threshold": 0.02, "min_p": 0.05, "temperature": 0.8},
    {"dynatemp_range": 0.5},
    {"temperature": 0.8, "dynatemp_range": 1.2, "dynatemp_exponent": 0.5},
    {"temperature": 2.0, "dynatemp_range": 0.7, "dynatemp_exponent": 2.5, "top_k": 12},
    {"repetition_penalty": 1.3, "repeat_last_n": 4},
    {"repetition_penalty": 0.7, "presence_penalty": 0.4, "frequency_penalty": 0.2, "repeat_last_n": 9},
    {"repetition_penalty": 1.7, "presence_penalty": 0.4, "repeat_last_n": 0},
    {"dry_multiplier": 0.8},
    {"dry_multiplier": 0.5, "dry_allowed_length": 1, "dry_base": 1.2},
    {"dry_multiplier": 0.5, "dry_allowed_length": 0, "dry_penalty_last_n": 7},
    {"dry_multiplier": 0.3, "dry_allowed_length": 1, "breakers": [[2]]},
    {"dry_multiplier": 0.3, "dry_allowed_length": 1, "breakers": [[1, 2]]},
    {"dry_multiplier": 0.3, "dry_allowed_length": 2, "breakers": [[1, 2, 3], [2, 3]]},
    {"dry_multiplier": 0.3, "dry_allowed_length": 1, "breakers": [[5], [7, 8], [8, 9, 1]]},
    {"dry_multiplier": 0.3, "dry_allowed_length": 1, "breakers": [[7, 8, 2]], "dry_penalty_last_n": 12},
    {"top_k": 20, "top_p": 0.8, "min_p": 0.05, "temperature": 0.6},
    # typ_p is undefined in llama.cpp if a token has no probability, so top_k removes those that top_n_sigma forbids.
    {"top_k": 9, "top_n_sigma": 2.2, "typical_p": 0.8, "top_p": 0.9, "min_p": 0.01, "temperature": 1.4,
     "repetition_penalty": 1.1, "frequency_penalty": 0.1, "dry_multiplier": 0.4, "repeat_last_n": 16},
    {"samplers": ["temperature", "min_p"], "temperature": 1.8, "min_p": 0.2},
    {"samplers": ["min_p", "temperature"], "temperature": 1.8, "min_p": 0.2},
    {"samplers": ["top_p"], "temperature": 0.2, "top_p": 0.7},
    {"samplers": []},
    {"samplers": ["top_k", "penalties", "temperature", "xtc"], "top_k": 8, "repetition_penalty": 1.4,
     "temperature": 0.7, "xtc_probability": 1.0, "xtc_threshold": 0.08},
    {"temperature": 0.0, "repetition_penalty": 1.5},
    {"mirostat": 2},
    {"mirostat": 2, "mirostat_tau": 2.0, "mirostat_eta": 0.9, "temperature": 1.3, "top_k": 2},
    {"mirostat": 2, "mirostat_tau": 0.2, "mirostat_eta": 0.5, "repetition_penalty": 9.0},
]


class Token(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float)]


def library(source: Path, folder: Path) -> ctypes.CDLL:
    shim, out = folder / "shim.cpp", folder / "samplers.so"
    shim.write_text(SHIM, encoding="utf-8")
    includes = [f"-I{source / part}" for part in ("include", "src", "ggml/include")]
    sources = [str(source / "src/llama-sampler.cpp"), str(shim)]
    lazy = ["-fPIC", "-shared", "-Wl,-z,lazy"]
    subprocess.run(["g++", "-std=c++17", "-O1", *lazy, *includes, *sources, "-o", str(out)], check=True)
    # ctypes resolves all symbols at once, those of ggml that are never called included.
    opened = ctypes.CDLL(None).dlopen
    opened.restype, opened.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_int]
    loaded = ctypes.CDLL(str(out), handle=opened(str(out).encode(), os.RTLD_LAZY))
    for name in [*LLAMA, "mirostat"]:
        getattr(loaded, name).restype = ctypes.c_void_p
    return loaded


def sampler(lib: ctypes.CDLL, name: str, case: dict) -> ctypes.c_void_p:
    value = {**DEFAULTS, **case}
    number = lambda key: ctypes.c_float(value[key])
    flat = [token for breaker in value.get("breakers", [[VOCAB + 1]]) for token in [len(breaker), *breaker]]
    arguments = {
        "penalties": [VOCAB, value["repeat_last_n"], number("repetition_penalty"), number("frequency_penalty"),
                      number("presence_penalty")],
        "dry": [number("dry_multiplier"), number("dry_base"), value["dry_allowed_length"],
                value["dry_penalty_last_n"], (ctypes.c_int * len(flat))(*flat),
                len(value.get("breakers", [0]))],
        "top_n_sigma": [number("top_n_sigma")],
        "top_k": [value["top_k"]],
        "typ_p": [number("typical_p")],
        "top_p": [number("top_p")],
        "min_p": [number("min_p")],
        "xtc": [number("xtc_probability"), number("xtc_threshold")],
        "temperature": [number("temperature"), number("dynatemp_range"), number("dynatemp_exponent")],
        "mirostat": [number("mirostat_tau"), number("mirostat_eta")],
    }
    return ctypes.c_void_p(getattr(lib, name)(*arguments[name]))


def left(data: "ctypes.Array[Token]", size: int) -> list[float]:
    """Probabilities of the tokens that are left, `[VOCAB]`."""
    kept = list(data[:size])
    best = max(token.logit for token in kept)
    weights = {token.id: math.exp(token.logit - best) for token in kept}
    return [weights.get(token, 0.0) / sum(weights.values()) for token in range(VOCAB)]


def tokens(logits: list[float]) -> "ctypes.Array[Token]":
    return (Token * VOCAB)(*[Token(token, logit, 0.0) for token, logit in enumerate(logits)])


def probabilities(lib: ctypes.CDLL, case: dict, logits: list[float], answer: list[int]) -> list[float]:
    data, size = tokens(logits), ctypes.c_int(VOCAB)
    for name in case.get("samplers", LLAMA):
        if name == "dry" and not case.get("dry_multiplier"):
            continue
        one = sampler(lib, name, case)
        for token in answer:
            lib.accept(one, token)
        lib.apply(one, data, size, ctypes.byref(size))
        lib.release(one)
    return left(data, size.value)


def mirostat(lib: ctypes.CDLL, case: dict, logits: list[float]) -> tuple[list[list[float]], list[int]]:
    """Distributions and tokens of four draws in a row from the same logits."""
    heat, one = sampler(lib, "temperature", case), sampler(lib, "mirostat", case)
    distributions, drawn = [], []
    for _ in range(4):
        data, size = tokens(logits), ctypes.c_int(VOCAB)
        lib.apply(heat, data, size, ctypes.byref(size))
        selected = lib.apply(one, data, size, ctypes.byref(size))
        distributions.append(left(data, size.value))
        drawn.append(data[selected].id)
    lib.release(heat)
    lib.release(one)
    return distributions, drawn


def short(numbers: list[float]) -> list[float]:
    return [float(f"{number:.6g}") for number in numbers]


def main() -> None:
    source = Path(sys.argv[1])
    generator = random.Random(11)
    out = []
    with tempfile.TemporaryDirectory() as folder:
        lib = library(source, Path(folder))
        for case in CASES * 2:
            # Numbers of f32, so that both sides read the same logits.
            logits = [ctypes.c_float(generator.gauss(0, 1.5)).value for _ in range(VOCAB)]
            answer = [generator.randrange(11) for _ in range(20)]
            answer += [1, 2, 3, 4, 5, 7, 8, 9, 1, 2, 3, 6, 7, 8, 2, 3, 4, 10, 1, 2, 3]
            entry = {"params": {"samplers": LLAMA, **case}, "logits": logits, "answer": answer}
            if case.get("mirostat"):
                distributions, entry["drawn"] = mirostat(lib, case, logits)
                entry["draws"] = [short(distribution) for distribution in distributions]
            else:
                entry["probabilities"] = short(probabilities(lib, case, logits, answer))
            out.append(entry)
    document = {"made_with": f"src/llama-sampler.cpp of {source.resolve().parent.parent.name}", "cases": out}
    path = DATA / "sampler_chain_goldens.json"
    path.write_text(json.dumps(document) + "\n", encoding="utf-8")
    print(f"{len(out)} cases -> {path}")


if __name__ == "__main__":
    main()
