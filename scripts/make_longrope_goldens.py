#!/usr/bin/env python3
"""Logits of transformers for LongRoPE: a tiny Qwen2-MoE whose angles have factors of their own.

Run with transformers 5.23: scripts/make_longrope_goldens.py. Writes engine/runtime/tests/data/longrope.json: the
configuration's `rope_scaling`, and for a sequence within the positions of the first training and one beyond them the
tokens and every 16th logit of each position, beginning at the position modulo 16.
"""
import json
import pathlib

import torch
from transformers import AutoConfig, AutoModelForCausalLM

DATA = pathlib.Path(__file__).parent.parent / "engine/runtime/tests/data"
ROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.02, 1.05, 1.1, 1.3, 1.7, 2.0],
    "long_factor": [1.08, 1.5, 2.25, 4.0, 9.5, 21.0, 40.5],
    "original_max_position_embeddings": 32,
}
STRIDE = 16


def main() -> None:
    folder = DATA / "families/qwen2-moe"
    config = AutoConfig.from_pretrained(folder)
    config.rope_parameters = ROPE | {"rope_theta": 1000000.0}
    model = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32).eval()
    sequences = []
    for length in (32, 70):
        tokens = [(7 + 31 * at + at * at) % 500 for at in range(length)]
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0]
        columns = [row[at % STRIDE :: STRIDE].tolist() for at, row in enumerate(logits)]
        sequences.append({"tokens": tokens, "columns": columns})
    made = {"rope_scaling": ROPE, "stride": STRIDE, "sequences": sequences}
    (DATA / "longrope.json").write_text(json.dumps(made) + "\n")


main()
