#!/usr/bin/env python3
"""Compares compiled CUDA kernels with their budgets, without a GPU.

usage: sass_budgets.py [--write] [--table] [--only TARGET...] [--nvdisasm FILE] [--] FOLDER...

FOLDER is what `cargo run -p nestling-cuda --example compile -- FOLDER` filled. Fails where a kernel takes more than
kernels/budgets.json allows: registers, stack, shared memory, barriers, or instructions of a hot loop, by unit.
--write  makes what was found the budget: a change that is meant, for a reviewer to see
--only   compares with the budgets of these targets alone
--table  prints the loops of hot kernels, and how often lanes meet in banks of shared memory

Where lanes would meet more often than before, which the formulas of addresses tell, it fails as well.
"""

import argparse
import json
import sys
from pathlib import Path

from sass import banks
from sass.budgets import compare, faults_of_texts, images_of, measure_all, table, to_text

BUDGETS = Path(__file__).resolve().parent.parent / "kernels" / "budgets.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--nvdisasm", default="nvdisasm")
    parser.add_argument("--budgets", type=Path, default=BUDGETS)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--only", nargs="+", default=[])
    options = parser.parse_args()
    images = images_of(options.folders)
    if not images:
        print("no images of kernels", file=sys.stderr)
        return 1
    measured = measure_all(images, options.nvdisasm)
    if options.table:
        print(table(measured), banks.table(), sep="\n\n")
    if options.write and options.only:
        parser.error("budgets are written for all targets at once")
    if options.write:
        options.budgets.write_text(to_text(measured))
    budgets = json.loads(options.budgets.read_text())
    if options.only:
        budgets = {kernel: {target: targets[target] for target in options.only if target in targets}
                   for kernel, targets in budgets.items()}
    worse, better = compare(budgets, measured)
    worse += faults_of_texts(images) + banks.faults()
    for line in better:
        print(f"better than its budget, which --write lowers: {line}")
    for line in worse:
        print(line, file=sys.stderr)
    count = sum(len(targets) for targets in measured.values())
    print(f"{count} compiled kernels, {len(worse)} faults")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
