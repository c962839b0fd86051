#!/usr/bin/env python3
"""Probabilities that transformers' own logits processors leave, into
engine/text/tests/data/sampler_goldens.json. Presence and frequency penalties are OpenAI's published
formula, which transformers has not.

usage: make_sampler_goldens.py        needs: pip install transformers torch
"""

import json
from pathlib import Path

import torch
import transformers
from transformers.generation import logits_process as lp

DATA = Path(__file__).resolve().parent.parent / "engine/text/tests/data"
VOCAB = 41
CASES = [
    {},
    {"temperature": 0.3},
    {"temperature": 1.7, "top_k": 5},
    {"top_k": 1},
    {"top_p": 0.9},
    {"top_p": 0.05},
    {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
    {"min_p": 0.1},
    {"temperature": 2.0, "min_p": 0.3, "top_p": 0.95, "top_k": 30},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8, "temperature": 0.9},
    {"presence_penalty": 0.6, "frequency_penalty": 0.25},
    {"logit_bias": [[3, 5.0], [40, -7.5]], "top_k": 4},
    {"logit_bias": [[0, 1.5]], "repetition_penalty": 1.2, "presence_penalty": -0.4,
     "frequency_penalty": 0.1, "temperature": 0.6, "top_k": 25, "top_p": 0.9, "min_p": 0.02},
]


def probabilities(case: dict, logits: torch.Tensor, prompt: list[int], answer: list[int]):
    scores = logits.clone()[None]
    ids = torch.tensor([prompt + answer])
    for token, bias in case.get("logit_bias", []):
        scores[0, token] += bias
    if "repetition_penalty" in case:
        scores = lp.RepetitionPenaltyLogitsProcessor(case["repetition_penalty"])(ids, scores)
    for token in set(answer):
        scores[0, token] -= case.get("frequency_penalty", 0.0) * answer.count(token)
        scores[0, token] -= case.get("presence_penalty", 0.0)
    if "temperature" in case:
        scores = lp.TemperatureLogitsWarper(case["temperature"])(ids, scores)
    if "top_k" in case:
        scores = lp.TopKLogitsWarper(case["top_k"])(ids, scores)
    if "top_p" in case:
        scores = lp.TopPLogitsWarper(case["top_p"])(ids, scores)
    if "min_p" in case:
        scores = lp.MinPLogitsWarper(case["min_p"])(ids, scores)
    return scores[0].double().softmax(-1)


def main() -> None:
    generator = torch.Generator().manual_seed(7)
    out = []
    for case in CASES:
        logits = torch.randn(VOCAB, generator=generator) * 2.5
        prompt = torch.randint(VOCAB, (6,), generator=generator).tolist()
        answer = torch.randint(VOCAB, (9,), generator=generator).tolist() + [11, 11, 11]
        expected = probabilities(case, logits, prompt, answer)
        out.append({
            "params": case,
            "logits": logits.tolist(),
            "prompt": prompt,
            "answer": answer,
            "probabilities": [float(f"{p:.7g}") for p in expected.tolist()],
        })
    path = DATA / "sampler_goldens.json"
    document = {"made_with": f"transformers {transformers.__version__}", "cases": out}
    path.write_text(json.dumps(document) + "\n", encoding="utf-8")
    print(f"{len(out)} cases -> {path}")


if __name__ == "__main__":
    main()
