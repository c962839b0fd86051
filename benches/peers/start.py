#!/usr/bin/env python3
"""Time from start to first token of several programs, in turn, with a warm page cache.

  start.py [--rounds 5] NAME='COMMAND' ...

Each command loads a model, computes one token, and ends; its whole time is taken. For example
  llama-bench -m MODEL.gguf -p 0 -n 1 -r 1 --no-warmup
  nestling bench -m MODEL.nest -p 0 -n 1 -r 1 --no-warmup --no-bandwidth --load-mode mmap
"""
import argparse
import os
import shlex
import statistics
import subprocess
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("engines", nargs="+", metavar="NAME=COMMAND")
    args = parser.parse_args()
    engines = [engine.split("=", 1) for engine in args.engines]
    times = {name: [] for name, _ in engines}
    for round_number in range(args.rounds + 1):
        for name, command in engines if round_number % 2 == 0 else engines[::-1]:
            started = time.monotonic()
            with open(os.devnull, "w") as nowhere:
                subprocess.run(shlex.split(command), stdout=nowhere, stderr=nowhere, check=True)
            if round_number > 0:  # the first round fills the page cache
                times[name].append(time.monotonic() - started)
    print("| program | median s | lowest | highest |")
    print("|---|---:|---:|---:|")
    for name, found in times.items():
        print(f"| {name} | {statistics.median(found):.2f} | {min(found):.2f} | {max(found):.2f} |")


if __name__ == "__main__":
    main()
