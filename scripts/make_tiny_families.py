#!/usr/bin/env python3
"""Makes a tiny seeded random checkpoint of every family, and what transformers computes from it.

    python3 scripts/make_tiny_families.py [FAMILY ...]

A family is a file in scripts/families/ with

    NAME        directory under engine/runtime/tests/data/families
    CONFIG      config.json, `model_type` and published keys included
    SHARD       optional, largest size of a weight file, e.g. "120KB"
    LENGTHS     optional, lengths of the golden sequences
    build(config) -> model                         optional: from CONFIG by transformers' AutoModel
    weight(name, parameter, generator) -> tensor   optional: None for the default of that name
    routers(model) -> [(module, logits)]           optional: see watch_routers; none in a dense family
    publish(directory)                             optional: edits the files that were saved
    load(directory, **options) -> model            optional: loads what was published

The weights go through transformers' own class and are saved under the names of the published
checkpoints. Goldens, in <NAME>-golden, all by transformers in float32, "eager":

golden.json         sequences: token ids of each; greedy: prompts with their continuation and, step
                    by step, the margin between the best and the second logit
golden.safetensors  all F32, P = positions of all sequences, one after the other
    columns     [P, C]  logits of the tokens (p + 4 c) mod V
    router_gap  [P]     least gap between the last chosen and the next router score, over layers; infinite
                        without routers

Needs torch, transformers, safetensors and tokenizers.
"""
import importlib.util
import json
import pathlib
import shutil
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from make_golden import ROOT, greedy, run, spans, validation_tokens, write  # noqa: E402
from make_tiny_checkpoint import write_json  # noqa: E402

FAMILIES = pathlib.Path(__file__).resolve().parent / "families"
DATA = ROOT / "engine" / "runtime" / "tests" / "data" / "families"
TOKENIZER = ROOT / "engine" / "runtime" / "tests" / "data" / "tiny-qwen3-moe"
STRIDE = 4


def random_weight(name: str, parameter: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Values that keep activations near 1, so that no part of the graph is idle."""
    values = torch.randn(parameter.shape, generator=generator)
    if "norm" in name:
        return 1 + 0.2 * values
    if name.endswith("bias") or parameter.dim() == 1:
        return 0.3 * values
    if "embed_tokens" in name:
        return values
    gain = 1.5 if "mlp" in name or "experts" in name else 2.0 if "lm_head" in name else 1.0
    return values * gain / parameter.shape[-1] ** 0.5


def build(family):
    if hasattr(family, "build"):
        return family.build(family.CONFIG)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**family.CONFIG))


def make_checkpoint(family, directory: pathlib.Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    torch.manual_seed(0)
    model = build(family).float()
    generator = torch.Generator().manual_seed(20261121)
    special = getattr(family, "weight", lambda *_: None)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            values = special(name, parameter, generator)
            if values is None:
                values = random_weight(name, parameter, generator)
            parameter.copy_(values)
    model.to(torch.bfloat16).save_pretrained(directory, max_shard_size=getattr(family, "SHARD", "120KB"))
    write_json(directory / "config.json", family.CONFIG)
    write_json(directory / "generation_config.json", {"eos_token_id": [2, 0]})
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(TOKENIZER / name, directory / name)
    getattr(family, "publish", lambda _: None)(directory)
    for file in directory.iterdir():
        file.chmod(0o644)


def load(family, directory: pathlib.Path):
    """The checkpoint as written, in float32."""
    load = getattr(family, "load", AutoModelForCausalLM.from_pretrained)
    options = {"dtype": torch.float32, "attn_implementation": "eager", "experts_implementation": "eager"}
    model = load(directory, **options).eval()
    assert all(p.dtype == torch.float32 for p in model.parameters())
    return model


def watch_routers(family, model) -> list[torch.Tensor]:
    """A list that every forward pass appends its layers' router gaps to, [T] each. `routers` of a
    family gives each router module with a function (inputs, output) -> (scores [T, E], K); by
    default a router is a class whose name ends so and whose output is (scores, _, ids)."""
    gaps: list[torch.Tensor] = []
    if hasattr(family, "routers"):
        routers = family.routers(model)
    else:
        modules = [m for m in model.modules() if type(m).__name__.endswith("TopKRouter")]
        routers = [(m, lambda _, output: (output[0], output[-1].shape[-1])) for m in modules]
    assert routers or hasattr(family, "routers"), "no router was found"
    for module, of in routers:
        def hook(_module, inputs, output, of=of) -> None:
            scores, chosen = of(inputs, output)
            best = scores.reshape(-1, scores.shape[-1]).topk(chosen + 1).values
            gaps.append(best[:, -2] - best[:, -1])
        module.register_forward_hook(hook)
    return gaps


def make_golden(family, directory: pathlib.Path) -> None:
    model = load(family, directory)
    gaps = watch_routers(family, model)
    sequences = spans(validation_tokens(directory), getattr(family, "LENGTHS", [70, 23]))
    results = [run(model, gaps, tokens) for tokens in sequences]
    logits = torch.cat([logits for logits, _ in results])
    positions, vocabulary = logits.shape
    columns = (torch.arange(positions)[:, None] + STRIDE * torch.arange(vocabulary // STRIDE)) % vocabulary
    texts = {
        "stride": STRIDE,
        "sequences": sequences,
        "greedy": [greedy(model, gaps, tokens[:9], 32) for tokens in sequences],
    }
    arrays = {
        "columns": logits.gather(1, columns),
        "router_gap": torch.cat([gap for _, gap in results]),
    }
    write(directory.with_name(directory.name + "-golden"), arrays, texts)


def main() -> None:
    names = sys.argv[1:] or sorted(file.stem for file in FAMILIES.glob("*.py"))
    for name in names:
        spec = importlib.util.spec_from_file_location(name, FAMILIES / f"{name}.py")
        family = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(family)
        directory = DATA / family.NAME
        make_checkpoint(family, directory)
        size = sum(file.stat().st_size for file in directory.iterdir())
        print(f"{directory.relative_to(ROOT)}: {size} bytes in {len(list(directory.glob('*.safetensors')))} shards")
        make_golden(family, directory)


if __name__ == "__main__":
    main()
