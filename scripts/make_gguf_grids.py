#!/usr/bin/env python3
"""Writes formats/import/src/gguf/grids.rs: the grids of GGUF's IQ types, out of the `gguf` package.

    python3 scripts/make_gguf_grids.py

A grid is part of the format: which groups of 8 (IQ1, IQ2) or 4 (IQ3) magnitudes an index stands for. No rule generates them;
they were chosen by llama.cpp's author. Each group is packed into 16 bits, the first magnitude in the lowest: 2 bits for each of
8 (places in {8, 25, 43} or in {-1, 0, 1}), 3 bits for each of 4 (places in the eight magnitudes of the type).

Needs gguf, and rustfmt to be run over the result.
"""
import pathlib

from gguf import quants

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "formats" / "import" / "src" / "gguf" / "grids.rs"
GRIDS = {
    "IQ1": ("IQ1_S", "Groups of eight of IQ1_S and IQ1_M: 2 bits each, the value plus 1."),
    "IQ2_XXS": ("IQ2_XXS", "Groups of eight of IQ2_XXS: 2 bits each, a place in {8, 25, 43}."),
    "IQ2_XS": ("IQ2_XS", "Groups of eight of IQ2_XS: 2 bits each, a place in {8, 25, 43}."),
    "IQ2_S": ("IQ2_S", "Groups of eight of IQ2_S: 2 bits each, a place in {8, 25, 43}."),
    "IQ3_XXS": ("IQ3_XXS", "Groups of four of IQ3_XXS: 3 bits each, a place among its magnitudes."),
    "IQ3_S": ("IQ3_S", "Groups of four of IQ3_S: 3 bits each, a magnitude `m` as `(m - 1) / 2`."),
}


def main() -> None:
    out = ["//! Grids of the IQ types: the groups of magnitudes that an index stands for.",
           "//!",
           "//! Written by scripts/make_gguf_grids.py. The first magnitude of a group is in the lowest bits.", ""]
    for name, (kind, text) in GRIDS.items():
        described = getattr(quants, kind)
        described.init_grid()
        grid = described.grid.reshape(described.grid_shape)
        bits = 16 // grid.shape[1] if grid.shape[1] == 8 else 3
        places = {float(value): place for place, value in enumerate(described.grid_map)}
        words = [sum(places[float(value)] << (bits * at) for at, value in enumerate(group)) for group in grid]
        values = ", ".join(f"0x{word:04x}" for word in words)
        out += [f"/// {text}", f"pub(super) static {name}: [u16; {len(words)}] = [{values}];", ""]
    OUT.write_text("\n".join(out[:-1]) + "\n")


if __name__ == "__main__":
    main()
