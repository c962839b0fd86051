#!/usr/bin/env python3
"""Writes what transformers computes in float32: the truth that the unquantized path is held to.

    python3 scripts/make_golden.py            # the tiny checkpoints
    python3 scripts/make_golden.py HF_DIR     # the demo model: eight sequences of 256 tokens

Each golden is a pair of files:

golden.json         sequences: token ids of each; greedy: prompts with their continuation and, step
                    by step, the margin between the best and the second logit; for the demo model
                    also column_stride and column_step (below)
golden.safetensors  all F32, P = positions of all sequences, one after the other
    router_gap  [P]     least gap between the last chosen and the next router logit, over layers
  tiny checkpoints:
    logits      [P, V]
  demo model, whose logits would be too large:
    top_ids     [P, 4]  the four best tokens, exact as F32
    top_logits  [P, 4]  their logits
    columns     [P, C]  logits of the columns (p * column_step + c * column_stride) mod V
    rows        [R, V]  all logits of the positions row_positions
    row_positions [R]   exact as F32

Needs torch, transformers, safetensors and tokenizers.
"""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "engine" / "runtime" / "tests" / "data"
COLUMN_STRIDE, COLUMN_STEP = 256, 37
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
DEMO_PROMPTS = [
    "The ship left the harbour at dawn",
    "\"My dear Watson,\" said Holmes,",
    "Once upon a time there was a little girl who",
    "Chapter 1\n\n",
    "It was a dark night, and the wind",
    CHAT.format("hi"),
    CHAT.format("Tell me a story about a ship and a storm."),
    CHAT.format("Continue in the style of Jules Verne: The balloon rose above the clouds."),
]


def load(directory: pathlib.Path):
    model = AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
    ).eval()
    assert all(p.dtype == torch.float32 for p in model.parameters())
    return model


def watch_routers(model) -> list[torch.Tensor]:
    """A list that every forward pass appends its layers' router gaps to, [T] each."""
    gaps: list[torch.Tensor] = []

    def hook(router, inputs, _output) -> None:
        hidden = inputs[0].reshape(-1, router.weight.shape[1])
        logits = torch.nn.functional.linear(hidden, router.weight)
        best = logits.topk(router.top_k + 1).values
        gaps.append(best[:, -2] - best[:, -1])

    count = 0
    for name, module in model.named_modules():
        if name.endswith("mlp.gate"):
            module.register_forward_hook(hook)
            count += 1
    assert count > 0, "no router was found"
    return gaps


@torch.no_grad()
def run(model, gaps: list[torch.Tensor], tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [T, V] and least router gaps [T] of one sequence; infinite gaps without routers."""
    gaps.clear()
    logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
    assert logits.dtype == torch.float32
    none = torch.full(logits.shape[:1], float("inf"))
    return logits, torch.stack([none, *gaps]).min(dim=0).values


def greedy(model, gaps: list[torch.Tensor], prompt: list[int], count: int) -> dict:
    """The argmax continuation, whatever tokens it has; every step computes all positions anew."""
    tokens, margins, least_gap = list(prompt), [], float("inf")
    for _ in range(count):
        logits, gap = run(model, gaps, tokens)
        best = logits[-1].topk(2)
        margins.append(round(float(best.values[0] - best.values[1]), 6))
        least_gap = min(least_gap, float(gap.min()))
        tokens.append(int(best.indices[0]))
    return {
        "prompt": prompt,
        "continuation": tokens[len(prompt):],
        "margins": margins,
        "least_router_gap": round(least_gap, 8) if least_gap < float("inf") else None,
    }


def spans(tokens: list[int], lengths: list[int]) -> list[list[int]]:
    """Pieces of those lengths, evenly spread."""
    starts = [len(tokens) * i // len(lengths) for i in range(len(lengths))]
    return [tokens[start:start + length] for start, length in zip(starts, lengths)]


def write(directory: pathlib.Path, arrays: dict[str, torch.Tensor], texts: dict) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    arrays = {name: array.to(torch.float32).contiguous() for name, array in arrays.items()}
    save_file(arrays, directory / "golden.safetensors")
    (directory / "golden.safetensors").chmod(0o644)
    (directory / "golden.json").write_text(json.dumps(texts) + "\n", encoding="utf-8")
    size = sum(file.stat().st_size for file in directory.iterdir())
    gap = arrays["router_gap"]
    near = int((gap < 1e-4).sum())
    print(f"{directory.relative_to(ROOT)}: {size} bytes, {near} of {len(gap)} gaps below 1e-4")


def validation_tokens(directory: pathlib.Path) -> list[int]:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    text = (ROOT / "data" / "validation.txt").read_text(encoding="utf-8")
    return tokenizer.encode(text, add_special_tokens=False).ids


def tiny(name: str, lengths: list[int]) -> None:
    source = DATA / name
    model = load(source)
    gaps = watch_routers(model)
    sequences = spans(validation_tokens(source), lengths)
    # Ids that no text has: the padded end of the vocabulary.
    sequences[0][:2] = [model.config.vocab_size - 1, 0]
    results = [run(model, gaps, tokens) for tokens in sequences]
    texts = {
        "sequences": sequences,
        "greedy": [greedy(model, gaps, tokens[:9], 64) for tokens in sequences],
    }
    arrays = {
        "logits": torch.cat([logits for logits, _ in results]),
        "router_gap": torch.cat([gap for _, gap in results]),
    }
    write(DATA / f"{name}-golden", arrays, texts)


def demo(source: pathlib.Path) -> None:
    model = load(source)
    gaps = watch_routers(model)
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    sequences = spans(validation_tokens(source), [256] * 8)
    results = [run(model, gaps, tokens) for tokens in sequences]
    logits = torch.cat([logits for logits, _ in results])
    positions, vocabulary = logits.shape
    top = logits.topk(4)
    stride = torch.arange(vocabulary // COLUMN_STRIDE) * COLUMN_STRIDE
    columns = (torch.arange(positions)[:, None] * COLUMN_STEP + stride) % vocabulary
    rows = torch.arange(8) * (positions // 8) + torch.arange(8) * 36
    prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in DEMO_PROMPTS]
    texts = {
        "column_stride": COLUMN_STRIDE,
        "column_step": COLUMN_STEP,
        "sequences": sequences,
        "greedy": [greedy(model, gaps, prompt, 64) for prompt in prompts],
    }
    arrays = {
        "router_gap": torch.cat([gap for _, gap in results]),
        "top_ids": top.indices,
        "top_logits": top.values,
        "columns": logits.gather(1, columns),
        "rows": logits[rows],
        "row_positions": rows,
    }
    write(DATA / "demo-golden", arrays, texts)


def main() -> None:
    if len(sys.argv) > 1:
        demo(pathlib.Path(sys.argv[1]))
        return
    tiny("tiny-qwen3-moe", [65, 40, 17])
    tiny("tiny-tied", [130, 33])


if __name__ == "__main__":
    main()
