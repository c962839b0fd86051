#!/usr/bin/env python3
"""Writes the small set of judged configurations, engine/runtime/tests/data/judged/FAMILY.json.

    python3 scripts/make_judged.py [--binary FILE] [FAMILY ...]

What is tried is in scripts/judge/small_set.py; every one must pass scripts/judge_families.py. A file
holds

    checkpoints  config; seed; tensors, each with shape, centre and spread of the rule that
                 scripts/judge/checkpoints.py describes; `{N}` in a name stands for 0 to N - 1
    cases        a checkpoint by number; changes of its configuration and keys to leave out (`without`),
                 within `text`; and what comes of it: logits, `[positions, columns]`, as transformers
                 computes them in float32; or `same`, if they are those of the checkpoint without the
                 change; or `refused`, what the error must contain
    tokens, positions, columns

Needs what scripts/judge_families.py needs.
"""
import argparse
import collections
import json
import pathlib
import re
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "judge"))
import numpy  # noqa: E402
import torch  # noqa: E402
from checkpoints import rule, tensors_of, write_config, write_weights  # noqa: E402
from families import ABSENT, FAMILIES, VOCABULARY, Family, patch  # noqa: E402
from judge_families import VERSION, Judge, all_keys, apply, keys_in  # noqa: E402
from sides import ROOT, Nestling, build_binary, make, save_again  # noqa: E402
from small_set import CHANGED, MADE  # noqa: E402

DATA = ROOT / "engine" / "runtime" / "tests" / "data" / "judged"
SEED = 1
TOKENS = [(17 * at * at + 5 * at + at // 3) % VOCABULARY for at in range(150)]
POSITIONS = [3, 40, 95, 149]
COLUMNS = list(range(0, 88, 8))
# Bookkeeping: leaving it out says nothing.
DULL = ["architectures", "initializer_range", "torch_dtype", "use_cache"]


class Small:
    def __init__(self, judge: Judge, family: Family):
        self.judge, self.family = judge, family
        self.checkpoints, self.cases = [], []

    def add_checkpoint(self, directory: pathlib.Path, tensors: dict, seed: int) -> list | None:
        """The checkpoint itself is a case; its logits, if it is accepted."""
        config = json.loads((directory / "config.json").read_text())
        self.checkpoints.append({"config": config, "seed": seed, "tensors": collapsed(tensors)})
        return self.add_case({}, directory, None)

    def add_case(self, change: dict, directory: pathlib.Path, base: list | None) -> list | None:
        entry = self.judge.judge(self.family.name, "small set", change, directory)
        case = {"checkpoint": len(self.checkpoints) - 1}
        if change:
            case["changes"] = {key: value for key, value in change.items() if value != ABSENT}
            case["without"] = [key for key, value in change.items() if value == ABSENT]
        found = None
        if entry["verdict"] == "equal":
            found = self.judge.theirs(change, directory, [TOKENS])[2][0]
            found = numpy.float32(found[POSITIONS][:, COLUMNS]).tolist()
            found = [[round(value, 5) for value in row] for row in found]
            case |= {"same": True} if found == base else {"logits": found}
        elif entry["verdict"] != "wrong":
            named = keys_in(entry["error"])
            wanted = sorted(named & all_keys(change)) or sorted(named)
            case["refused"] = wanted[:1]
        self.cases.append(case)
        return found

    def run(self, scratch: pathlib.Path) -> dict:
        family, base = self.family, scratch / self.family.name
        tensors = make(family.config, base, SEED, layout=family.layouts[0])
        logits = self.add_checkpoint(base, tensors, SEED)
        config = family.text_of(family.config)
        left_out = [{key: ABSENT} for key in sorted(config) if key not in DULL]
        for change in left_out + CHANGED:
            directory = scratch / "changed"
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            (directory / "model.safetensors").hardlink_to(base / "model.safetensors")
            write_config(directory, apply(family, change))
            self.add_case(change, directory, logits)
        for number, options in enumerate(MADE[family.name]):
            directory = scratch / f"{family.name}-{number}"
            self.add_checkpoint(directory, self.made(base, directory, dict(options), number + 2), number + 2)
        return {
            "transformers": VERSION, "text": list(family.text), "tokens": TOKENS, "positions": POSITIONS,
            "columns": COLUMNS, "checkpoints": self.checkpoints, "cases": self.cases,
        }

    def made(self, base: pathlib.Path, directory: pathlib.Path, options: dict, seed: int) -> dict:
        form, layout = options.pop("form", "given"), options.pop("layout", "saved")
        if options.pop("again", False):
            save_again(base, directory)
            tensors = tensors_of(directory)
            rules = {name: rule(name, shape, self.family.config["model_type"]) for name, shape in tensors.items()}
            write_weights(directory, tensors, rules, seed, "float32")
            return {name: (shape, *rules[name]) for name, shape in tensors.items()}
        return make(apply(self.family, options), directory, seed, form, layout)


def collapsed(tensors: dict) -> dict:
    """Experts of a layer in one line: `{N}` for their numbers."""
    groups = collections.defaultdict(list)
    for name, value in tensors.items():
        pattern = re.sub(r"\.experts\.\d+\.", ".experts.{}.", name)
        groups[pattern, json.dumps(value)].append(name)
    out = {}
    for (pattern, value), names in groups.items():
        out[pattern.replace("{}", "{%d}" % len(names))] = json.loads(value)
    return out


def lines(value: dict) -> str:
    """JSON with a line for every case, checkpoint and tensor."""
    def member(key: str, inner: object) -> str:
        if key == "cases":
            return "[\n" + ",\n".join("  " + json.dumps(case) for case in inner) + "\n]"
        if key == "checkpoints":
            return "[\n" + ",\n".join(checkpoint(one) for one in inner) + "\n]"
        return json.dumps(inner)

    def checkpoint(one: dict) -> str:
        tensors = ",\n".join(f"    {json.dumps(name)}: {json.dumps(rule)}" for name, rule in sorted(one["tensors"].items()))
        return f'  {{"seed": {one["seed"]}, "config": {json.dumps(one["config"])}, "tensors": {{\n{tensors}\n  }}}}'

    return "{\n" + ",\n".join(f"{json.dumps(key)}: {member(key, inner)}" for key, inner in value.items()) + "\n}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("family", nargs="*")
    parser.add_argument("--binary", type=pathlib.Path, help="the example `logits`, where it is built already")
    options = parser.parse_args()
    torch.set_num_threads(1)
    wrong = 0
    DATA.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        nestling = Nestling(options.binary or build_binary(), scratch)
        for name in options.family or MADE:
            judge = Judge(nestling, scratch, SEED)
            text = lines(Small(judge, FAMILIES[name]).run(scratch))
            (DATA / f"{name}.json").write_text(text, encoding="utf-8")
            found = sum(entry["verdict"] == "wrong" for entry in judge.entries)
            print(f"{name}: {len(judge.entries)} cases, {len(text)} bytes, {found} wrong", flush=True)
            wrong += found
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
