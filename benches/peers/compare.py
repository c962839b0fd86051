#!/usr/bin/env python3
"""Run programs with llama-bench's interface in turn, and compare them test by test.

  compare.py [--rounds 3] [--json OUT] [--high-priority] NAME='COMMAND' NAME='COMMAND' ...

Each command must print llama-bench's JSON (`-o json`): a list of objects with n_prompt, n_gen,
n_depth and avg_ts. The order flips every round; a ratio is taken round by round, then its median.
The first program is what the others are compared with. Peak memory is the process's own
(ru_maxrss), time the whole process's. A load average far above 0 spoils the figures; it is printed.

--high-priority (root): with sched_autogroup on, nice does nothing between sessions, so each
program gets a session of its own at the highest priority.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time


def run(command, high_priority):
    def prepare():
        os.setsid()
        if high_priority:
            os.nice(-20)
            with open("/proc/self/autogroup", "w") as group:
                group.write("-20")

    started = time.monotonic()
    process = subprocess.Popen(shlex.split(command), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, preexec_fn=prepare, text=True)
    out, err = process.stdout, process.stderr
    text = out.read()
    errors = err.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - started
    if process.returncode != 0:
        return {"error": f"exit {process.returncode}: {errors[-300:]}", "seconds": seconds}
    return {"tests": json.loads(text), "seconds": seconds, "peak_bytes": usage.ru_maxrss * 1024,
            "load": os.getloadavg()[0]}


def name_of(test):
    name = "+".join(f"{word}{test[key]}" for word, key in (("pp", "n_prompt"), ("tg", "n_gen"))
                    if test[key])
    if test.get("n_depth"):
        name += f" @ d{test['n_depth']}"
    if test.get("n_sessions", 1) > 1:
        name += f" x{test['n_sessions']}"
    return f"{name} t{test['n_threads']}"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="file for all results")
    parser.add_argument("--high-priority", action="store_true")
    parser.add_argument("engines", nargs="+", metavar="NAME=COMMAND")
    args = parser.parse_args()
    engines = [engine.split("=", 1) for engine in args.engines]
    rows = []
    for round_number in range(args.rounds):
        order = engines if round_number % 2 == 0 else engines[::-1]
        for name, command in order:
            result = run(command, args.high_priority)
            rows.append({"engine": name, "round": round_number, "command": command, **result})
            tests = result.get("tests", [])
            speeds = "  ".join(f"{name_of(test)} {test['avg_ts']:.2f}" for test in tests)
            peak = result.get("peak_bytes", 0) / 1e9
            print(f"round {round_number} {name:<14} {peak:6.2f} GB {result['seconds']:6.1f} s  "
                  f"{speeds or result.get('error')}", file=sys.stderr, flush=True)
            if args.json:
                with open(args.json, "w") as file:
                    json.dump(rows, file, indent=1)
    report(engines, rows)


def report(engines, rows):
    speeds = {}
    for row in rows:
        for test in row.get("tests", []):
            speeds.setdefault(name_of(test), {}).setdefault(row["engine"], {})[row["round"]] = (
                test["avg_ts"])
    print("| test | program | median t/s | lowest | highest | ratio |")
    print("|---|---|---:|---:|---:|---:|")
    for test, by_engine in speeds.items():
        first = by_engine.get(engines[0][0], {})
        for name, _ in engines:
            found = by_engine.get(name)
            if not found:
                continue
            ratios = [found[key] / first[key] for key in found if key in first]
            ratio = f"{statistics.median(ratios):.2f}" if ratios else ""
            values = list(found.values())
            print(f"| {test} | {name} | {statistics.median(values):.2f} | {min(values):.2f} | "
                  f"{max(values):.2f} | {ratio} |")
    print()
    for name, _ in engines:
        peaks = [row["peak_bytes"] for row in rows if row["engine"] == name and "peak_bytes" in row]
        if peaks:
            print(f"{name}: peak memory {statistics.median(peaks) / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
