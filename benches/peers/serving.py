#!/usr/bin/env python3
"""Put servers of the OpenAI API under the same load in turn, and compare them.

  serving.py --client target/dist/nestling [--rounds 3] [--json OUT] [--high-priority] [--memory BYTES]
             --load NAME='OPTIONS of bench serve' ... NAME='COMMAND' NAME='COMMAND' ...

Each round starts each server once ({port} in its command is a free port), waits until /health says that it is ready,
asks it with `nestling bench serve` once for each load, and ends it. The order flips every round; a ratio is taken round
by round against the first server, then its median. Peak memory is the server's own (VmHWM). With --memory a server runs
in a control group of that many bytes (root, cgroup v1 or v2), the page cache dropped before it starts.

--high-priority (root): server and client get sessions of their own at the highest priority.
"""
import argparse
import json
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

from limited import Group

WAIT_SECONDS = 600
# What is compared: a name, the field of `bench serve -o json`, and whether more is better.
FIGURES = [
    ("tokens/s", "output_throughput", True),
    ("prompt and answer tokens/s", "total_token_throughput", True),
    ("median first token, ms", "median_ttft_ms", False),
    ("p95 first token, ms", "p95_ttft_ms", False),
    ("median gap, ms", "median_itl_ms", False),
    ("p95 gap, ms", "p95_itl_ms", False),
]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def in_front():
    os.nice(-20)
    with open("/proc/self/autogroup", "w") as group:
        group.write("-20")


class Server:
    def __init__(self, command, memory, high_priority):
        self.port = free_port()
        self.group = Group(memory) if memory else None
        if memory:
            subprocess.run(["sync"], check=True)
            with open("/proc/sys/vm/drop_caches", "w") as drop:
                drop.write("3")

        def prepare():
            os.setsid()
            if high_priority:
                in_front()
            if self.group:
                self.group.join()

        self.log = open("/tmp/serving.log", "wb")
        words = shlex.split(command.replace("{port}", str(self.port)))
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log, preexec_fn=prepare)

    def wait(self):
        until = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < until and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health") as answer:
                    if answer.status == 200:
                        return
            except (OSError, urllib.error.HTTPError):
                pass
            time.sleep(0.2)
        raise SystemExit(f"the server is not ready; {self.log.name} says why")

    def peak_bytes(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            line = next(line for line in status if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    def end(self):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.group:
            self.group.remove()


def ask(client, port, options, high_priority):
    words = [client, "bench", "serve", "--url", f"http://127.0.0.1:{port}", "-o", "json", *options]

    def prepare():
        os.setsid()
        if high_priority:
            in_front()

    done = subprocess.run(words, stdout=subprocess.PIPE, preexec_fn=prepare, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else []


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", required=True, help="the program nestling, which asks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="file for all results")
    parser.add_argument("--memory", type=int, help="bytes of each server's control group")
    parser.add_argument("--high-priority", action="store_true")
    parser.add_argument("--warm-up", metavar="OPTIONS", help="a load before the others, not counted")
    parser.add_argument("--load", action="append", required=True, metavar="NAME=OPTIONS")
    parser.add_argument("servers", nargs="+", metavar="NAME=COMMAND")
    args = parser.parse_args()
    servers = [server.split("=", 1) for server in args.servers]
    loads = [load.split("=", 1) for load in args.load]
    rows = []
    for round_number in range(args.rounds):
        order = servers if round_number % 2 == 0 else servers[::-1]
        for name, command in order:
            server = Server(command, args.memory, args.high_priority)
            try:
                server.wait()
                if args.warm_up:
                    ask(args.client, server.port, shlex.split(args.warm_up), args.high_priority)
                for load, options in loads:
                    # Every round asks something else, so that no server finds what it was asked before.
                    words = [*shlex.split(options), "--seed", str(round_number + 1)]
                    for record in ask(args.client, server.port, words, args.high_priority):
                        rows.append({"server": name, "round": round_number, "load": load,
                                     "command": command, "options": options,
                                     "load_average": os.getloadavg()[0], **record})
                        figures = "  ".join(f"{key} {record.get(key) or 0:.1f}" for _, key, _ in FIGURES)
                        print(f"round {round_number} {name:<14} {load} x{record['max_concurrency']}: "
                              f"{record['completed']} done, {record['failed']} failed  {figures}",
                              file=sys.stderr, flush=True)
                peak = server.peak_bytes()
                rows.append({"server": name, "round": round_number, "peak_bytes": peak})
                print(f"round {round_number} {name:<14} peak {peak / 1e9:.2f} GB", file=sys.stderr)
            finally:
                server.end()
            if args.json:
                with open(args.json, "w") as file:
                    json.dump(rows, file, indent=1)
    report(servers, rows)


def report(servers, rows):
    figures = {}
    for row in rows:
        if "load" not in row:
            continue
        for title, key, _ in FIGURES:
            if row.get(key) is not None:
                place = (row["load"], row["max_concurrency"], title)
                figures.setdefault(place, {}).setdefault(row["server"], {})[row["round"]] = row[key]
    names = [name for name, _ in servers]
    print(f"| load | clients | figure | {' | '.join(names)} | times the first's |")
    print("|---|---:|---|" + "---:|" * (len(names) + 1))
    for (load, clients, title), found in figures.items():
        first = found.get(names[0], {})
        cells, ratios = [], []
        for name in names:
            values = found.get(name, {})
            cells.append(" ".join(f"{value:.4g}" for value in values.values()))
            shared = [values[key] / first[key] for key in values if first.get(key)]
            if name != names[0] and shared:
                ratios.append(f"{statistics.median(shared):.2f}")
        print(f"| {load} | {clients} | {title} | {' | '.join(cells)} | {', '.join(ratios)} |")
    for name in names:
        peaks = [row["peak_bytes"] for row in rows
                 if row["server"] == name and "peak_bytes" in row]
        if peaks:
            print(f"\n{name}: peak memory {statistics.median(peaks) / 1e9:.2f} GB", end="")
    print()


if __name__ == "__main__":
    main()
