#!/usr/bin/env python3
"""Judges the reading of configurations: transformers and Nestling on the same checkpoints.

    python3 scripts/judge_families.py [--count N] [--pairs N] [--fresh N] [--seed S]
                                      [--family NAME ...] [--binary FILE] [--json FILE]

Of every family of scripts/judge/families.py it makes a tiny checkpoint with transformers' own class,
then changes keys of config.json to unusual values, or leaves them out (`--count` of that, all by
default), and does two of that at once (`--pairs`): with the same weights, and with weights of the new
shapes where those do not fit. Then it draws `--fresh` configurations of other shapes and switches.
Last, it saves the checkpoint again by transformers. What transformers computes in float32, eager, is
compared with Nestling's unquantized path on the same files: prompts of 41 and 137 tokens, whole, in
pieces, and token by token.

Each ends in one of

    equal    no logit differs by more than 2e-4, or three times what transformers itself differs by
             between float32 and float64 where that is more
    refused  Nestling's error names the key, or a tensor where transformers lacks or skips tensors too
    neither  transformers refuses the configuration, and Nestling by name too
    wrong    anything else

and the exit status is 1 if any is wrong. Needs torch, transformers 5.23.0, accelerate, safetensors and
numpy, and a Rust toolchain.
"""
import argparse
import collections
import copy
import json
import pathlib
import random
import re
import shutil
import signal
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "judge"))
import numpy  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from checkpoints import WEIGHTS, write_config  # noqa: E402
from families import ABSENT, FAMILIES, VOCABULARY, Family, patch  # noqa: E402
from published import as_published  # noqa: E402
from sides import Misfit, Nestling, Refused, build_binary, load, logits, make, noise, read_config, save_again  # noqa: E402
from values import changes_of  # noqa: E402

VERSION = "5.23.0"
TOLERANCE = 2e-4
NOISE_FACTOR = 3
LENGTHS = [41, 137]
VERDICTS = ["equal", "refused", "neither", "wrong"]
# What is not there where these are left out: stores that were made of GGUF files leave them out. Where
# transformers has another default, its checkpoints have tensors too many or too few, and Nestling says which.
MEANS_NONE = {"q_lora_rank": None, "hidden_size_per_layer_input": 0}
# Sizes of an indexer and the layers that have their own, with values that fit the weights: its tensors are passed over.
PASSED_OVER = {
    "index_head_dim": 16, "index_n_heads": 2, "index_skip_topk_offset": 2, "index_topk_freq": 1, "index_topk_pattern": ABSENT,
    "indexer_types": ABSENT,
}
# Variants that speak of the configuration.
OF_KEYS = ["Value", "Unsupported", "UnknownOption", "Limit"]
# What no logit depends on; transformers checks some of it before it computes.
BOOKKEEPING = [
    "architectures", "attention_dropout", "aux_loss_alpha", "bos_token_id", "dtype", "ep_size", "eos_token_id",
    "initializer_range", "max_window_layers", "num_mtp_layers", "num_nextn_predict_layers", "output_hidden_states",
    "output_router_logits", "pad_token_id", "pretraining_tp", "return_dict", "router_aux_loss_coef",
    "router_jitter_noise", "seq_aux", "torch_dtype", "use_cache", "vocab_size_per_layer_input",
]
# Variants of ImportError that speak of tensors.
OF_TENSORS = ["MissingTensor", "UnexpectedTensor", "Tensor"]


def prompts_of(seed: int, vocabulary: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(vocabulary) for _ in range(length)] for length in LENGTHS]


def keys_in(text: str) -> set[str]:
    """What an error puts between backticks, and the objects that it says that is in."""
    return set(re.findall(r"`([^`]+)`", text)) | set(re.findall(r"(?<=: )([a-z_0-9]+)(?=: )", text))


def all_keys(value: object) -> set[str]:
    if not isinstance(value, dict):
        return set()
    return set(value).union(*[all_keys(inner) for inner in value.values()])


class Judge:
    def __init__(self, nestling: Nestling, scratch: pathlib.Path, seed: int):
        self.nestling, self.scratch, self.seed = nestling, scratch, seed
        self.of_family = ""
        self.entries: list[dict] = []
        self.not_made: list[dict] = []

    def judge(self, family: str, how: str, changes: dict, directory: pathlib.Path) -> dict:
        """The verdict on the checkpoint of a folder, kept with what was changed."""
        started = time.time()
        self.of_family = family
        verdict = self.verdict(changes, directory, how.startswith("drawn"))
        if not changes and verdict["verdict"] == "refused":
            verdict |= {"verdict": "wrong", "why": f"what transformers itself saved is refused: {verdict['error']}"}
        entry = {"family": family, "how": how, "changes": changes} | verdict
        entry["seconds"] = round(time.time() - started, 2)
        self.entries.append(entry)
        if entry["verdict"] == "wrong":
            shown = json.dumps(changes)
            print(f"WRONG {family}, {how}, {shown}: {entry['why']}", flush=True)
        return entry

    def ours(self, directory: pathlib.Path, prompts: list) -> dict:
        return self.nestling.judge(as_published(self.of_family, directory), prompts)

    def verdict(self, changes: dict, directory: pathlib.Path, drawn: bool) -> dict:
        vocabulary = VOCABULARY
        text = self.text_of(directory)
        if isinstance(text.get("vocab_size"), int):
            vocabulary = max(4, min(VOCABULARY, text["vocab_size"]))
        prompts = prompts_of(self.seed, vocabulary)
        ours = self.ours(directory, prompts)
        if "died" in ours:
            return {"verdict": "wrong", "why": f"Nestling died: {ours['died']}"}
        if "refused" in ours:
            return self.of_refusal(changes, directory, prompts, ours, drawn)
        try:
            model, unexpected, theirs = self.theirs(changes, directory, prompts)
        except Refused as error:
            return {"verdict": "wrong", "why": f"accepted, transformers refuses: {error}"}
        except Misfit as error:
            return {"verdict": "wrong", "why": f"accepted, transformers lacks weights: {error}"}
        if not all(numpy.isfinite(found).all() for found in theirs):
            return {"verdict": "wrong", "why": "accepted, transformers computes no finite logits"}
        difference = largest(ours["logits"], theirs)
        tolerance = TOLERANCE
        if difference > TOLERANCE:
            tolerance = max(TOLERANCE, NOISE_FACTOR * noise(model, theirs, prompts))
        found = {"difference": difference, "tolerance": tolerance, "unexpected": unexpected[:3]}
        if difference <= tolerance:
            return {"verdict": "equal"} | found
        # Routers near a tie choose otherwise for a difference in the last bits: another prompt decides.
        again = prompts_of(self.seed + 1, vocabulary)
        ours = self.ours(directory, again)
        model, _, theirs = self.theirs(changes, directory, again)
        second = largest(ours["logits"], theirs)
        if second <= max(TOLERANCE, NOISE_FACTOR * noise(model, theirs, again)):
            return {"verdict": "equal", "near_tie": difference} | found | {"difference": second}
        return {"verdict": "wrong", "why": f"logits differ by {difference:.2g} and {second:.2g}, tolerance {tolerance:.2g}"} | found

    def theirs(self, changes: dict, directory: pathlib.Path, prompts: list) -> tuple:
        """The model, the tensors that it skips, and its logits."""
        try:
            model, unexpected = load(directory)
            return model, unexpected, logits(model, prompts)
        except Refused as refusal:
            # transformers checks some of what no logit depends on, and tells 3 from 3.0 where JSON does not.
            other = {key: ABSENT for key in changes if key in BOOKKEEPING}
            named = dict(re.findall(r"Field '(\w+)' expected (float|int, got float)", str(refusal)))
            for key, value in changes.items():
                if key in other or key not in named:
                    continue
                if named[key] == "float" and type(value) is int:
                    other[key] = float(value)
                elif named[key] != "float" and type(value) is float and value.is_integer():
                    other[key] = int(value)
            text = self.text_of(directory)
            if text["model_type"] == "mixtral" and "head_dim" not in text:
                # It forgets to derive the width of a head where YaRN needs it.
                other["head_dim"] = text["hidden_size"] // text["num_attention_heads"]
            if not other:
                raise
        except Misfit:
            other = {key: value for key, value in MEANS_NONE.items() if changes.get(key) == ABSENT}
            other |= {key: value for key, value in PASSED_OVER.items() if key in changes}
            if not other:
                raise
        model, unexpected = load(self.altered(directory, other))
        return model, unexpected, logits(model, prompts)

    @staticmethod
    def text_of(directory: pathlib.Path) -> dict:
        config = json.loads((directory / "config.json").read_text())
        return config.get("text_config") or config

    def altered(self, directory: pathlib.Path, changes: dict) -> pathlib.Path:
        """The same weights with another configuration."""
        config = json.loads((directory / "config.json").read_text())
        patch(config.get("text_config") or config, changes)
        out = self.scratch / "altered"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        (out / WEIGHTS).hardlink_to(directory / WEIGHTS)
        write_config(out, config)
        return out

    @staticmethod
    def runs(directory: pathlib.Path, prompts: list) -> bool:
        try:
            model, _ = load(directory)
            return bool(numpy.isfinite(logits(model, prompts[:1])[0]).all())
        except (Refused, Misfit):
            return False

    def of_refusal(self, changes: dict, directory: pathlib.Path, prompts: list, ours: dict, drawn: bool) -> dict:
        error, kind = ours["refused"], ours["kind"]
        named = keys_in(error)
        found = {"error": error, "kind": kind}
        names_changed = bool(named & all_keys(changes))
        names_key = names_changed or (kind in OF_KEYS and bool(named))
        if names_key:
            try:
                read_config(directory)
            except Refused as refusal:
                return {"verdict": "neither", "transformers": str(refusal)} | found
            if changes and not names_changed:
                found["names_another_key"] = sorted(named)
            # It says of a value that it makes no sense.
            if kind == "Value" and self.runs(directory, prompts):
                found["transformers_runs"] = True
                if drawn:
                    return {"verdict": "wrong", "why": f"a legal value is said to make no sense: {error}"} | found
            return {"verdict": "refused"} | found
        names_tensor = kind in OF_TENSORS
        try:
            model, unexpected = load(directory)
            logits(model, prompts[:1])
        except Refused as refusal:
            verdict = "neither" if names_tensor else "wrong"
            return {"verdict": verdict, "why": f"names neither key nor tensor: {error}", "transformers": str(refusal)} | found
        except Misfit as misfit:
            verdict = "refused" if names_tensor else "wrong"
            return {"verdict": verdict, "why": f"names neither key nor tensor: {error}", "transformers": str(misfit)} | found
        if names_tensor and any(changes.get(key) == ABSENT for key in MEANS_NONE):
            return {"verdict": "refused", "transformers": "another default"} | found
        if names_tensor and unexpected:
            return {"verdict": "refused", "transformers": f"skips {len(unexpected)} tensors"} | found
        return {"verdict": "wrong", "why": f"blames the file, transformers runs it: {error}"} | found

    def family(self, family: Family, count: int | None, pairs: int, fresh: int) -> None:
        base = self.scratch / family.name
        make(family.config, base, self.seed, layout=family.layouts[0])
        self.judge(family.name, "base", {}, base)
        self.drawn(family, fresh)
        if not family.is_drawn_only:
            self.changed(family, base, count, pairs)
            self.saved_again(family, base)
        shutil.rmtree(base)

    def changed(self, family: Family, base: pathlib.Path, count: int | None, pairs: int) -> None:
        """Changes of few keys, and two of them at once, with the same weights and, where those do not
        fit, with others."""
        rng = random.Random(f"{self.seed}/{family.name}")
        changes = changes_of(family)
        rng.shuffle(changes)
        inner = [change for change in changes if "" not in change]
        both = [rng.sample(inner, 2) for _ in range(pairs)]
        for change in changes[:count] + [one | other for one, other in both]:
            directory = self.scratch / "changed"
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            (directory / WEIGHTS).hardlink_to(base / WEIGHTS)
            config = apply(family, change)
            write_config(directory, config)
            entry = self.judge(family.name, "same weights", change, directory)
            speaks_of_weights = entry.get("kind") in OF_TENSORS or "lacks weights" in entry.get("why", "")
            if speaks_of_weights:
                self.made(family, "new weights", change, config, layout=family.layouts[0])

    def drawn(self, family: Family, count: int) -> None:
        rng = random.Random(f"{self.seed}/{family.name}/drawn")
        for _ in range(count):
            config = family.drawn(rng)
            form = rng.choice(["given", "saved"])
            layout = rng.choice(family.layouts)
            if layout == "mxfp4":
                # Whole blocks of inputs.
                patch(config, {"hidden_size": 64, "intermediate_size": 32})
            self.made(family, f"drawn, config {form}, experts {layout}", difference_of(family, config), config, form, layout)

    def made(self, family: Family, how: str, change: dict, config: dict, form: str = "given", layout: str = "saved") -> None:
        directory = self.scratch / "made"
        shutil.rmtree(directory, ignore_errors=True)
        try:
            make(config, directory, self.seed + len(self.entries), form, layout)
        except Refused as refusal:
            # There are no weights that could be opened: this is no configuration.
            self.not_made.append({"family": family.name, "changes": change, "transformers": str(refusal)})
            return
        self.judge(family.name, how, change, directory)

    def saved_again(self, family: Family, base: pathlib.Path) -> None:
        directory = self.scratch / "again"
        shutil.rmtree(directory, ignore_errors=True)
        save_again(base, directory)
        self.judge(family.name, "saved again by AutoModelForCausalLM", {}, directory)


def largest(ours: list, theirs: list) -> float:
    pairs = [(way, exact) for ways, exact in zip(ours, theirs) for way in ways]
    if any(way.shape != exact.shape for way, exact in pairs):
        return float("inf")
    differences = [numpy.abs(way - exact).max() for way, exact in pairs]
    return float("inf") if any(numpy.isnan(differences)) else float(max(differences))


def apply(family: Family, change: dict) -> dict:
    """The family's configuration with a change of its text part, or under "" of what is around it."""
    config = copy.deepcopy(family.config)
    if list(change) == [""]:
        return patch(config, copy.deepcopy(change[""]))
    patch(family.text_of(config), copy.deepcopy(change))
    return config


def difference_of(family: Family, config: dict) -> dict:
    before, after = family.text_of(family.config), family.text_of(config)
    keys = sorted(before.keys() | after.keys())
    return {key: after.get(key, ABSENT) for key in keys if before.get(key, ABSENT) != after.get(key, ABSENT)}


def table(entries: list[dict]) -> str:
    lines = ["| family | configurations | equal | refused by name | refused by both | wrong | largest difference |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|")
    groups = collections.defaultdict(list)
    for entry in entries:
        groups[entry["family"]].append(entry)
    for name, group in [*groups.items(), ("all", entries)]:
        counts = collections.Counter(entry["verdict"] for entry in group)
        differences = [entry["difference"] for entry in group if entry["verdict"] == "equal"]
        cells = " | ".join(str(counts[verdict]) for verdict in VERDICTS)
        lines.append(f"| {name} | {len(group)} | {cells} | {max(differences, default=0):.1e} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, help="changed configurations of each family; all by default")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of changes of each family")
    parser.add_argument("--fresh", type=int, default=20, help="drawn configurations of each family")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--family", action="append", choices=list(FAMILIES))
    parser.add_argument("--binary", type=pathlib.Path, help="the example `logits`, where it is built already")
    parser.add_argument("--json", type=pathlib.Path, help="where every configuration's verdict goes")
    options = parser.parse_args()
    if transformers.__version__ != VERSION:
        sys.exit(f"transformers is {transformers.__version__}, the reference is {VERSION}")
    torch.set_num_threads(1)
    # What was judged until then is told.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.time()
    binary = options.binary or build_binary()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        judge = Judge(Nestling(binary, scratch), scratch, options.seed)
        try:
            for name in options.family or FAMILIES:
                judge.family(FAMILIES[name], options.count, options.pairs, options.fresh)
                mine = [entry for entry in judge.entries if entry["family"] == name]
                print(table(mine).splitlines()[2], flush=True)
        except KeyboardInterrupt:
            print("stopped before the end")
    print(f"\nseed {options.seed}, transformers {VERSION}, {time.time() - started:.0f} s\n\n{table(judge.entries)}")
    if options.json:
        counts = collections.Counter(entry["verdict"] for entry in judge.entries)
        summary = {"seed": options.seed, "transformers": VERSION, "counts": counts, "entries": judge.entries, "not_made": judge.not_made}
        options.json.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return int(any(entry["verdict"] == "wrong" for entry in judge.entries))


if __name__ == "__main__":
    sys.exit(main())
