"""Budgets of compiled kernels: what may not get worse unnoticed."""

import json
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import ptx
from .cubin import read_cubin
from .facts import barriers_of, kernel_loops, resources
from .listing import disassemble

# Kernels that a token's or a prompt's time is spent in: their loops are watched, of others resources alone.
HOT = re.compile(
    r"^(matvec_(nested|nested_rows|gated_quantize|float)|matmul_nested|attend_f16|attend_split_(f16|int8)|argmax.*|route"
    r"|rms_norm_quantize)$"
)
# More of these is better.
MORE_IS_BETTER = {"in_flight", "weights_awaited_after"}
# What an image begins with: its checksum.
CHECKSUM_BYTES = 16
IMAGE_NAME = re.compile(r"^(?P<kernel>\w+)-[0-9a-f]{32}-(?P<target>(sm|compute)_\d+)-(?P<compiler>[\d.]+)$")


@dataclass(frozen=True)
class Image:
    kernel: str
    target: str
    compiler: str
    data: bytes


def images_of(folders: list[Path]) -> list[Image]:
    """What the example `compile` left in some folders."""
    found = []
    for folder in folders:
        for path in sorted(folder.iterdir()):
            name = IMAGE_NAME.match(path.name)
            if name:
                data = path.read_bytes()[CHECKSUM_BYTES:]
                found.append(Image(name["kernel"], name["target"], name["compiler"], data))
    return found


def measure(image: Image, nvdisasm: str) -> dict:
    cubin = read_cubin(image.data)
    found: dict = {"compiler": image.compiler} | resources(cubin, image.target)
    if HOT.match(image.kernel):
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(image.data)
            file.flush()
            code = disassemble(nvdisasm, file.name)
        found["barriers"] = barriers_of(code)
        found["loops"] = kernel_loops(cubin, code)
    elif found["barriers"] == 0:
        # Cubins for newer devices do not say; only the code does.
        del found["barriers"]
    return found


def measure_all(images: list[Image], nvdisasm: str) -> dict[str, dict[str, dict]]:
    """By kernel and target."""
    devices = [image for image in images if image.target.startswith("sm_")]
    with ThreadPoolExecutor() as pool:
        measured = list(pool.map(lambda image: measure(image, nvdisasm), devices))
    found: dict[str, dict[str, dict]] = {}
    for image, one in zip(devices, measured):
        found.setdefault(image.kernel, {})[image.target] = one
    return found


def compare_numbers(name: str, budget: dict, found: dict) -> tuple[list[str], list[str]]:
    """What is worse than its budget, and what is better."""
    worse, better = [], []
    for key in sorted(budget.keys() | found.keys()):
        if key in ("loops", "compiler"):
            continue
        if key not in budget or key not in found:
            worse.append(f"{name}: {key} is {'new' if key in found else 'gone'}")
            continue
        rises = found[key] - budget[key]
        if key in MORE_IS_BETTER:
            rises = -rises
        line = f"{name}: {key} {budget[key]} -> {found[key]}"
        if rises > 0:
            worse.append(line)
        elif rises < 0:
            better.append(line)
    return worse, better


def names_of(budgets: dict, measured: dict):
    """Every place at which one of both has something, with what both have."""
    for kernel in sorted(budgets.keys() | measured.keys()):
        budget, found = budgets.get(kernel, {}), measured.get(kernel, {})
        for target in sorted(budget.keys() | found.keys()):
            one, other = budget.get(target), found.get(target)
            yield f"{kernel} {target}", one, other
            loops, seen = (one or {}).get("loops", {}), (other or {}).get("loops", {})
            for loop in sorted(loops.keys() | seen.keys()) if one and other else []:
                yield f"{kernel} {target} {loop}", loops.get(loop), seen.get(loop)


def compare(budgets: dict, measured: dict) -> tuple[list[str], list[str]]:
    worse, better = [], []
    for name, budget, found in names_of(budgets, measured):
        if budget is None:
            worse.append(f"{name}: has no budget")
        elif found is None:
            worse.append(f"{name}: is gone")
        elif budget.get("compiler") != found.get("compiler"):
            worse.append(f"{name}: compiled by {found.get('compiler')}, budget by {budget.get('compiler')}")
        else:
            more, less = compare_numbers(name, budget, found)
            worse += more
            better += less
    return worse, better


def to_text(measured: dict) -> str:
    """JSON with a line for each kernel, target and loop, so that changes can be read."""
    kernels = []
    for kernel, targets in sorted(measured.items()):
        lines = []
        for target, found in sorted(targets.items(), key=lambda item: int(item[0].removeprefix("sm_"))):
            loops = found.get("loops", {})
            own = json.dumps({key: value for key, value in found.items() if key != "loops"})
            if loops:
                inner = ",\n".join(f'        "{name}": {json.dumps(one)}' for name, one in sorted(loops.items()))
                own = f'{own[:-1]}, "loops": {{\n{inner}\n      }}}}'
            lines.append(f'    "{target}": {own}')
        kernels.append(f'  "{kernel}": {{\n' + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(kernels) + "\n}\n"


def table(measured: dict) -> str:
    """Loops of hot kernels, as Markdown."""
    lines = [
        "| kernel | target | registers | shared | loop | instructions (apart) | ALU | FMA | LSU | loads of weights, other |"
        " waits before weights | awaited after | in flight |",
        "|---|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for kernel, targets in sorted(measured.items()):
        for target, found in sorted(targets.items()):
            for name, one in sorted(found.get("loops", {}).items()):
                lines.append(
                    f"| `{kernel}` | {target} | {found['registers']} | {found['shared_bytes']} | {name} |"
                    f" {one['instructions']} ({one['instructions_apart']}) | {one['alu']} | {one['fma']} |"
                    f" {one['lsu']} | {one['weight_loads']}, {one['loads']} |"
                    f" {one.get('waits_before_weights', '')} | {one.get('weights_awaited_after', '')} |"
                    f" {one['in_flight']} |"
                )
    return "\n".join(lines)


def faults_of_texts(images: list[Image]) -> list[str]:
    """What is wrong with the PTX of a release."""
    texts = [image for image in images if image.target.startswith("compute_")]
    return [fault for image in texts for fault in ptx.faults(image.kernel, image.target, image.data)]
