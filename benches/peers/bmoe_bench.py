#!/usr/bin/env python3
"""Run BigMoeOnEdge's bmoe-cli with llama-bench's JSON, for limited.py.

  bmoe_bench.py CLI RUNS RUN ARGUMENTS...

It generates RUNS x RUN tokens after a short prompt and prints the times of RUNS repetitions, from the metrics of each
token. BigMoeOnEdge 0.19 builds against the llama.cpp of README.md as its third_party/llama.cpp, after the calls of
common_speculative_process and common_speculative_draft have been taken out of core/src/engine/session.cpp.
`--overlap` needs the hook that its docs/seam.md describes, in ggml_compute_forward_mul_mat_id.
"""
import csv
import json
import os
import subprocess
import sys
import tempfile


def token_times(path):
    """Nanoseconds of each token."""
    with open(path) as file:
        head, *rows = csv.reader(line for line in file if not line.startswith("#"))
    column = head.index("wall_ms")
    return [float(row[column]) * 1e6 for row in rows]


def main():
    cli, runs, run = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tokens.csv")
        command = [cli, "-n", str(runs * run + 1), "--csv", path, *sys.argv[4:]]
        result = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if result.returncode != 0:
            raise SystemExit(result.stderr[-2000:])
        times = token_times(path)[-runs * run:]
    samples = [sum(times[start:start + run]) for start in range(0, runs * run, run)]
    print(json.dumps([{"samples_ns": samples, "n_gen": run}]))


if __name__ == "__main__":
    main()
