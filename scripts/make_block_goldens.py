#!/usr/bin/env python3
"""Writes engine/runtime/tests/data/gguf/blocks.json: blocks of GGUF's element types, and what the `gguf` package reads in them.

    python3 scripts/make_block_goldens.py

For each type two random blocks with the bits of their numbers, and under "scales" random blocks whose scales are zero, negative,
denormal and the largest ones, with the FNV-1a hash of the bits of all their numbers, little-endian. The package lacks Q1_0 and
Q2_0: their numbers are computed here as llama.cpp's dequantize_row_q1_0 and dequantize_row_q2_0 do.

Needs gguf and numpy.
"""
import json
import pathlib

import gguf
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "engine" / "runtime" / "tests" / "data" / "gguf" / "blocks.json"

# Where the half-precision numbers of a block lie.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2],
    "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0],
    "IQ3_XXS": [0], "IQ3_S": [0], "IQ1_S": [0], "IQ1_M": [], "TQ1_0": [52], "TQ2_0": [64], "NVFP4": [], "Q1_0": [0], "Q2_0": [0],
}
# Bits of half-precision numbers: 0, -0, the least denormals, a denormal, the largest number, and its negative.
SCALES = [0x0000, 0x8000, 0x0001, 0x8001, 0x02A5, 0x7BFF, 0xFBFF]
# Exponents of MXFP4: zeros, denormals, one, and the largest for which every number is finite.
EXPONENTS = [0, 1, 2, 3, 127, 251, 252]
# Four scales of NVFP4: zeros and what is no number of E4M3, denormals, the largest numbers, and those with the highest bit set.
FP8 = [[0, 0x7F, 0x80, 0x81], [1, 2, 7, 8], [0x78, 0x7D, 0x7E, 0x38], [0xFE, 0xB8, 0x87, 0x88]]


def size(name: str) -> int:
    return 18 if name == "Q2_0" else gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1]


def numbers(name: str, block: np.ndarray) -> np.ndarray:
    if name in ("Q1_0", "Q2_0"):
        scale = block[:2].view(np.float16).astype(np.float32)
        bits = 1 if name == "Q1_0" else 2
        codes = (block[2:, None] >> np.arange(0, 8, bits, dtype=np.uint8) & (2**bits - 1)).reshape(-1)
        if name == "Q1_0":
            return np.where(codes == 1, scale, -scale).astype(np.float32)
        return (codes.astype(np.int32) - 1).astype(np.float32) * scale
    return gguf.quants.dequantize(block[None], gguf.GGMLQuantizationType[name]).reshape(-1)


def with_scales(name: str, generator: np.random.Generator) -> list[np.ndarray]:
    blocks = []
    for index in range(7):
        block = generator.integers(0, 256, size(name), dtype=np.uint8)
        for which, at in enumerate(HALVES[name]):
            block[at:at + 2] = np.array([SCALES[(index + 3 * which) % 7]], dtype="<u2").view(np.uint8)
        if name == "IQ1_M":
            words = block[48:].view("<u2")
            words[:] = [word & 0x0FFF | (SCALES[index] >> 4 * at & 15) << 12 for at, word in enumerate(words)]
        if name == "MXFP4":
            block[0] = EXPONENTS[index]
        if name == "NVFP4":
            block[:4] = FP8[index % 4]
        blocks.append(block)
    return blocks


def fnv(data: bytes) -> str:
    hashed = 0xCBF29CE484222325
    for byte in data:
        hashed = (hashed ^ byte) * 0x100000001B3 % 2**64
    return f"{hashed:016x}"


def main() -> None:
    generator = np.random.default_rng(20261121)
    out = {}
    for name in HALVES:
        cases = []
        while len(cases) < 2:
            block = generator.integers(0, 256, size(name), dtype=np.uint8)
            values = numbers(name, block)
            if np.isfinite(values).all():
                cases.append({"block": block.tobytes().hex(), "values": values.astype("<f4").tobytes().hex()})
        out[name] = cases
    out["scales"] = {}
    for name in HALVES:
        blocks = with_scales(name, generator)
        values = np.concatenate([numbers(name, block) for block in blocks])
        assert np.isfinite(values).all() and values.dtype == np.float32, name
        out["scales"][name] = {"blocks": b"".join(block.tobytes() for block in blocks).hex(), "hash": fnv(values.astype("<f4").tobytes())}
    OUT.write_text(json.dumps(out) + "\n")


if __name__ == "__main__":
    main()
