#!/usr/bin/env python3
"""How fast the compiled CUDA kernels should be on a card, without one.

usage: predict_speed.py [--nvdisasm FILE] [--card NAME] [--prompts] [--score FILE] FOLDER...

FOLDER is what `cargo run -p nestling-cuda --example compile -- FOLDER` filled. Prints, for each card and for memory
that is idle and busy, the share of its bandwidth that large launches reach at every level, and microseconds of a layer
of Qwen3-30B-A3B for one token.
--prompts  the share of the int8 rate, and a layer for a prompt of 512 tokens, too
--score    compares with a card's record instead (benches/records/DATE/gpu-CARD.json)
"""

import argparse
import sys
from pathlib import Path

from sass.budgets import images_of
from speed_model import score
from speed_model.cards import CARDS, Card, busy
from speed_model.kernels import Compiled, NoImage, take_apart
from speed_model.predictions import argmax, floor, head, layer, prompt_layer, shares, tensor_shares


class Kernels:
    """Machine code, taken apart when it is first asked for."""

    def __init__(self, folders: list[Path], nvdisasm: str):
        self.images = {(image.kernel, image.target): image for image in images_of(folders)}
        self.nvdisasm = nvdisasm
        self.known: dict[tuple[str, str], Compiled] = {}

    def find(self, kernel: str, target: str) -> Compiled:
        if (kernel, target) not in self.known:
            if (kernel, target) not in self.images:
                raise NoImage(f"there is no image of {kernel} for {target}")
            self.known[kernel, target] = take_apart(self.images[kernel, target], self.nvdisasm)
        return self.known[kernel, target]


def print_card(kernels: Kernels, card: Card, memory: str, prompts: bool):
    print(f"\n{card.name}, memory {memory}: share of bandwidth")
    for kernel in ("matvec_nested", "matvec_gated_quantize"):
        found = shares(kernels.find, card, kernel).items()
        texts = [f"level {level}{' apart' if apart else ''} {100 * value:.0f} %" for (level, apart), value in found]
        print(f"  {kernel}: {', '.join(texts)}")
    parts = layer(kernels.find, card)
    print(f"  a layer: {', '.join(f'{name} {value:.1f}' for name, value in parts.items())}")
    print(f"  in all {sum(parts.values()):.0f} us, its bytes {floor(card):.1f} us;", end=" ")
    print(f"head {head(kernels.find, card):.0f} us, argmax {argmax(kernels.find, card):.0f} us")
    if prompts:
        for pairs in (64, 32):
            found = tensor_shares(kernels.find, card, pairs).items()
            texts = [f"level {level} {100 * value:.1f} %" for level, value in found]
            print(f"  matmul_nested, {pairs} rows a block, of {card.int8_tops:.0f} TOPS: {', '.join(texts)}")
        parts = prompt_layer(kernels.find, card)
        print(f"  a layer for 512 tokens: {', '.join(f'{name} {value:.0f} us' for name, value in parts.items())}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--nvdisasm", default="nvdisasm")
    parser.add_argument("--card")
    parser.add_argument("--prompts", action="store_true")
    parser.add_argument("--score", type=Path)
    options = parser.parse_args()
    kernels = Kernels(options.folders, options.nvdisasm)
    try:
        if options.score:
            record = score.read_record(options.score)
            card = score.card_of(record, options.score, options.card)
            print(f"{card.name}:\n{score.to_text(*score.score(record, card, kernels.find))}")
            return 0
        for card in CARDS:
            if options.card in (None, card.name):
                print_card(kernels, card, "idle", options.prompts)
                print_card(kernels, busy(card), "busy", prompts=False)
    except (score.RecordError, NoImage, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
